"""A server without a model that is right about all that a client can ask: for `welldone mock`, and to test with."""

from welldone.engines.ideal.server import ReferenceServer as ReferenceServer
