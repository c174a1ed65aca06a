"""The routes of version 1: parse, call, answer."""

from .router import create_api as create_api
