"""A server without a model that is right about all that a client can ask: for `welldone mock`, and to test checks on."""

from welldone.engines.ideal.server import Ideal as Ideal
