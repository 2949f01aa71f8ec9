import type { Retention, SignalOptions } from './storage.ts';

/** The bytes of an object. The put owns them until it ends. */
export type Body = AsyncIterable<Uint8Array> | Iterable<Uint8Array>;

export interface ObjectOptions extends SignalOptions {
  /** UID of the Backup or Restore that owns the file. An encrypted file is bound to it. */
  readonly ownerUid?: string | undefined;
  /**
   * Encrypts a file that only servers read, in every location, and refuses a plain file in its
   * place. The bucket of a location does that; a store ignores it.
   */
  readonly isSealed?: boolean | undefined;
}

export interface ObjectPutOptions extends ObjectOptions {
  /** Refuses with `BLOB_EXISTS` if the key exists; some stores check that before the put. */
  readonly ifAbsent?: boolean | undefined;
}

/**
 * A bucket below its prefix: objects under keys with slashes, of any length. A {@link BlobStorage}
 * holds the packs of one repository; a bucket holds the files beside repositories. Every
 * implementation promises (the suite in test/contract tests it):
 * - `put` is atomic and overwrites: others see the old bytes or the new bytes, also after a kill or
 *   a failed body. A body is read once, no faster than it is stored. A failed put closes it.
 * - Every later call sees the object.
 * - `put` with `ifAbsent` keeps an existing object. After a lost answer, a put may be refused
 *   because of its own object.
 * - `get` of a missing object throws `BLOB_NOT_FOUND` before its first bytes. An interrupted `get`
 *   throws, and never yields a short object. If the object is replaced meanwhile, it throws
 *   `BLOB_CHANGED` when it notices.
 * - `delete` of a missing object succeeds.
 * - `list` yields each key with the prefix once. `listFolders` yields the names right below a
 *   prefix that ends with a slash. Both have no order. A folder exists while it has objects.
 * - Memory is bounded for any length.
 */
export interface Bucket extends AsyncDisposable {
  /** For messages: the place, without credentials. */
  readonly displayName: string;
  put(key: string, body: Body, options?: ObjectPutOptions): Promise<void>;
  get(key: string, options?: ObjectOptions): AsyncIterable<Uint8Array>;
  has(key: string, options?: SignalOptions): Promise<boolean>;
  delete(key: string, options?: SignalOptions): Promise<void>;
  list(prefix: string, options?: SignalOptions): AsyncIterable<string>;
  listFolders(prefix: string, options?: SignalOptions): AsyncIterable<string>;
  /** A URL for a plain GET, valid for this long. Throws `UNSUPPORTED_URL` if there is none. */
  signedUrl(key: string, lifetimeMs: number, options?: SignalOptions): Promise<string>;
  /** Extends an object's lock to this long from now. Throws `UNSUPPORTED_PUT` without locks. */
  extendRetention?(key: string, retention: Retention, options?: SignalOptions): Promise<void>;
  close(): Promise<void>;
}
