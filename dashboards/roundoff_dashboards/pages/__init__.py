"""The pages, as a router that any application can include."""

from .routes import STATIC as STATIC, create_pages as create_pages
from .views import CONTENT_SECURITY_POLICY as CONTENT_SECURITY_POLICY, not_found_page as not_found_page
