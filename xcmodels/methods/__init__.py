"""The methods, by name. Methods never import each other; DEPSL and the dual encoders are settings of UniDEC's parts."""

from xcmodels.methods.ngame import Ngame
from xcmodels.methods.unidec import Unidec

METHODS = {"ngame": Ngame, **dict.fromkeys(("unidec", "depsl", "dpr", "tas", "ance", "dexml"), Unidec)}
