import { CodedError, decodeGoUtf8, systemCode } from '../../base/index.ts';
import type { DirectoryEntry, WalkedEntry } from '../../snapshot/index.ts';
import { rawNameIn } from '../../volume-files/index.ts';
import { NameSet } from '../listing/name-set.ts';

/** A name in the target: bytes if it is not UTF-8. */
export type DiskName = string | Buffer;

type NamedEntry = Pick<DirectoryEntry, 'name' | 'extra'>;

/**
 * The name that an entry has on disk. Refuses a name that leads out of its directory. Throws
 * `UNSAFE_NAME`, `BAD_ATTRIBUTES`.
 */
export function diskNameOf({ name, extra }: NamedEntry): DiskName {
  assertPlainName(name);
  const raw = rawNameIn(extra);
  if (!raw) return name;
  // Or with the suffix of a name that equals another name in UTF-8.
  const shown = decodeGoUtf8(raw);
  if (name === shown || /^~\d+$/.test(name.startsWith(shown) ? name.slice(shown.length) : '')) {
    return raw;
  }
  throw unsafe(name);
}

function assertPlainName(name: string): void {
  if (name === '' || name === '.' || name === '..' || /[/\0]/.test(name)) throw unsafe(name);
}

const unsafe = (name: string): CodedError =>
  new CodedError('UNSAFE_NAME', `the snapshot holds the unsafe name ${JSON.stringify(name)}`);

/** Names from the root to an entry. Throws like {@link diskNameOf}. */
export function diskPathOf({ entry, parent }: WalkedEntry): DiskName[] {
  return parent ? [...diskPathOf(parent), diskNameOf(entry)] : [];
}

/** A key for a name on disk. A name that is not UTF-8 has a unique key. */
export const keyOfName = (name: string | Uint8Array): string =>
  typeof name === 'string' ? name : `\0${Buffer.from(name).toString('latin1')}`;

/** The key for an entry; its shown name if its bytes are not valid. */
export function keyOfEntry({ name, extra }: NamedEntry): string {
  try {
    return keyOfName(rawNameIn(extra) ?? name);
  } catch {
    return name;
  }
}

/** Detects two entries of a directory with the same name in bytes. */
export class RawNames {
  readonly #seen = new NameSet();

  /** Throws `UNSAFE_NAME`. `diskNameOf` reports other invalid names. */
  assertFirst({ name, extra }: NamedEntry): void {
    const key = keyOfEntry({ name, extra });
    if (key !== name && !this.#seen.add(key)) throw unsafe(name);
  }
}

/** Explains the system error if another entry has the name of a directory. */
export function inTheWay(error: unknown): unknown {
  const code = systemCode(error);
  if (code === 'ENOTDIR' || code === 'ELOOP') {
    const text = 'a file or symbolic link is in the way of a directory';
    return new CodedError('TARGET_IN_THE_WAY', text, { cause: error });
  }
  return error;
}
