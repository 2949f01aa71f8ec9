import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { CodedError } from '../base/index.ts';
import { openFilesystemStorage } from './filesystem/filesystem-storage.ts';
import { SHARDS_NEW } from './filesystem/sharding.ts';
import type { BlobStorage } from './storage.ts';

export interface OpenStorageOptions {
  /** Make what is missing (a directory), for a repository about to be created. */
  create?: boolean;
}

type Opener = (location: URL, options: OpenStorageOptions) => Promise<BlobStorage>;

/** Schemes and who serves them. Other stores add a line here and nothing above `blob/` changes. */
const OPENERS: Record<string, Opener> = {
  'file:': (location, { create }) =>
    openFilesystemStorage({
      path: fileURLToPath(location),
      ...(create === true && { create: SHARDS_NEW }),
    }),
};

/** Opens a location: a path, or a URL. Throws `BAD_LOCATION` and what the storage throws. */
export async function openStorage(
  location: string,
  options: OpenStorageOptions = {},
): Promise<BlobStorage> {
  const url = parseLocation(location);
  const opener = OPENERS[url.protocol];
  if (!opener) {
    const known = Object.keys(OPENERS).map((scheme) => `${scheme}//`);
    const text = `storage scheme "${url.protocol}//" is not known; use a path or ${known.join(', ')}`;
    throw new CodedError('BAD_LOCATION', text);
  }
  return opener(url, options);
}

function parseLocation(location: string): URL {
  if (!/^[a-z][a-z0-9+.-]+:/.test(location)) {
    return new URL(
      `file://${encodeURI(resolve(location)).replaceAll(/[?#]/g, encodeURIComponent)}`,
    );
  }
  try {
    const url = new URL(location);
    if (url.protocol !== 'file:' || url.host === '') return url;
  } catch {
    // Not a URL; the one message below serves both.
  }
  throw new CodedError('BAD_LOCATION', `"${location}" is not a path or a storage URL`);
}
