"""The methods, by name. Methods never import each other."""

from xcmodels.methods.ngame import Ngame

METHODS = {"ngame": Ngame}
