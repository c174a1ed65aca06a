"""The pages, as a router that any application can include."""

from .routes import STATIC as STATIC, create_pages as create_pages
from .views import not_found_page as not_found_page
