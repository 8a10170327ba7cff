"""TEMPORARY: old names until the merge; to be deleted."""

from nws.data.tfd import TFD_MD5 as TFD_MD5
