import { CodedError } from '../../base/index.ts';

/** `[g-z]?` and the hash in hex: `k0e0ba4…`. */
export type ContentId = string & { readonly brand: 'ContentId' };

/** '' = file data, k = directory, x = indirect index, m = manifest. */
export type ContentPrefix = '' | 'k' | 'x' | 'm';

const PATTERN = /^[g-z]?(?:[0-9a-f]{2}){16,64}$/;

/** Throws `BAD_CONTENT_ID`. */
export function parseContentId(text: string): ContentId {
  if (PATTERN.test(text)) return text as ContentId;
  throw new CodedError('BAD_CONTENT_ID', `"${text.slice(0, 80)}" is not a content ID`);
}

export function contentIdOf(prefix: string, hash: Uint8Array): ContentId {
  return (prefix +
    Buffer.from(hash.buffer, hash.byteOffset, hash.length).toString('hex')) as ContentId;
}

export const prefixOf = (id: ContentId): string => (id.length % 2 === 1 ? id.charAt(0) : '');

/** The sort key of indexes: prefix byte (0 if none), then the hash. */
export function contentKey(id: ContentId): Buffer {
  const key = Buffer.allocUnsafe(keyBytesOf(id));
  writeContentKey(id, key, 0);
  return key;
}

export const keyBytesOf = (id: ContentId): number => 1 + (id.length >> 1);

export function writeContentKey(id: ContentId, out: Buffer, offset: number): void {
  const hasPrefix = id.length % 2 === 1;
  out[offset] = hasPrefix ? id.charCodeAt(0) : 0;
  out.write(hasPrefix ? id.slice(1) : id, offset + 1, 'hex');
}

export function hashOf(id: ContentId): Buffer {
  return Buffer.from(id.slice(id.length % 2), 'hex');
}

export function contentIdOfKey(key: Uint8Array): ContentId {
  const prefix = key[0] === 0 ? '' : String.fromCharCode(key[0] as number);
  return contentIdOf(prefix, key.subarray(1));
}
