"""cloud-init's data source for Compute Engine, outside a boot: the crawl by which it finds out which machine this is."""

import os

from cloudinit import version as cloudinit_version
from cloudinit.sources import DataSource, DataSourceGCE

ADDRESS = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/"


def version():
    return cloudinit_version.version_string()


def token():
    # It has no use for tokens; what it cannot do without is the instance's id.
    retries, pause = DataSource.url_retries, DataSource.url_sec_between_retries
    fetcher = DataSourceGCE.GoogleMetadataFetcher(ADDRESS, retries, pause)
    return fetcher.get_value("instance/id", True)


def steps():
    # The patience of a boot. The machine's BIOS, which would say that this is not Compute Engine, is not asked.
    source = DataSource.__new__(DataSource)
    source.ds_cfg = {}
    patience = source.get_url_params()

    def crawl():
        found = DataSourceGCE.read_md(address=ADDRESS, url_params=patience, platform_check=False)
        if not found["success"]:
            raise RuntimeError(found["reason"])
        return found["meta-data"]["instance-id"]

    return {"crawl": crawl}
