import type { Retention, SignalOptions } from './storage.ts';

/** What an object is made of; owned by the put until it ends. */
export type Body = AsyncIterable<Uint8Array> | Iterable<Uint8Array>;

export interface ObjectOptions extends SignalOptions {
  /** UID of the Backup or Restore whose file it is. An encrypted file is bound to it. */
  readonly ownerUid?: string | undefined;
  /**
   * Encrypts a file that only servers read, in every location. Refuses a plain file in its place.
   * The bucket of a location does that. A store takes no notice.
   */
  readonly isSealed?: boolean | undefined;
}

export interface ObjectPutOptions extends ObjectOptions {
  /**
   * Refuse with `BLOB_EXISTS` when the key is there. Where a store has no such put, a look before
   * the put has to do.
   */
  readonly ifAbsent?: boolean | undefined;
}

/**
 * A bucket below its prefix: objects under keys with slashes, of any length. Where a
 * {@link BlobStorage} holds the packs of one repository, this holds what lies beside them. What
 * every implementation promises (the suite in test/contract holds them to it):
 * - `put` is atomic and overwrites: others see the old bytes or the new, never a part, also when
 *   it is killed or its body fails. A body is read once, no faster than it is stored, and closed
 *   when the put fails.
 * - What was put is seen by every call that starts afterwards.
 * - `put` with `ifAbsent` leaves what is there as it is. A put whose answer was lost may be
 *   refused for what it has itself put.
 * - `get` of what is missing throws `BLOB_NOT_FOUND` before its first bytes; one that breaks off
 *   throws, and is never a short object. An object that is replaced while it is read throws
 *   `BLOB_CHANGED`, where that is noticed.
 * - `delete` of what is missing succeeds.
 * - `list` yields each key with the prefix once, `listFolders` the names right below a prefix
 *   that ends with a slash, in any order; a folder is there as long as something lies in it.
 * - Memory is bounded, whatever the length.
 */
export interface Bucket extends AsyncDisposable {
  /** For messages: where this is, without credentials. */
  readonly displayName: string;
  put(key: string, body: Body, options?: ObjectPutOptions): Promise<void>;
  get(key: string, options?: ObjectOptions): AsyncIterable<Uint8Array>;
  has(key: string, options?: SignalOptions): Promise<boolean>;
  delete(key: string, options?: SignalOptions): Promise<void>;
  list(prefix: string, options?: SignalOptions): AsyncIterable<string>;
  listFolders(prefix: string, options?: SignalOptions): AsyncIterable<string>;
  /**
   * A URL for a plain GET without further headers, valid for this long. Throws `UNSUPPORTED_URL`
   * where there is none.
   */
  signedUrl(key: string, lifetimeMs: number, options?: SignalOptions): Promise<string>;
  /**
   * Puts the end of an object's lock off, to so long from now. Throws `UNSUPPORTED_PUT` where
   * objects cannot be locked.
   */
  extendRetention?(key: string, retention: Retention, options?: SignalOptions): Promise<void>;
  close(): Promise<void>;
}
