"""SiameseXML and SiameseXML++."""
