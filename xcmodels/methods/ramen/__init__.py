"""RAMEN over NGAME, ANCE or UniDEC."""
