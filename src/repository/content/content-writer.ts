import { type Compressor, compressContent, contentIv } from '../../codec/index.ts';
import type { IndexEntry } from '../index/entry.ts';
import { type ContentId, contentIdOf, type ContentPrefix, hashOf } from '../index/content-id.ts';
import type { ContentManagerOptions } from './content-options.ts';
import type { DamagedContents } from './damaged-contents.ts';
import type { WriteSession } from './write-session.ts';

/** The stored contents of all clients, and the session that takes new contents. */
interface StoredContents {
  find(id: ContentId): IndexEntry | undefined;
  isStored(entry: IndexEntry | undefined): boolean;
  readonly damaged: DamagedContents;
  /** Timestamp in seconds of a new entry for the same content: later than `present`. */
  timestampAfter(present: IndexEntry | undefined): number;
  readonly session: WriteSession;
}

export interface WriteContentOptions {
  readonly prefix: ContentPrefix;
  readonly compressor?: Compressor | undefined;
}

/** Hashes, compresses and encrypts small contents, such as metadata, in this thread. */
export class ContentWriter {
  readonly #options: ContentManagerOptions;
  readonly #contents: StoredContents;
  /** Contents being appended, which find() misses. Hundreds of links may share a target. */
  readonly #writing = new Map<ContentId, Promise<void>>();

  constructor(options: ContentManagerOptions, contents: StoredContents) {
    this.#options = options;
    this.#contents = contents;
  }

  /** Stores nothing if the content exists. Throws the error that kept the content out of a pack. */
  async write(
    data: Uint8Array,
    { prefix, compressor }: WriteContentOptions,
  ): Promise<{ contentId: ContentId; isNew: boolean }> {
    const { hasher, encryptor } = this.#options.codec;
    const contentId = contentIdOf(prefix, hasher.hash([data]));
    const writing = this.#writing.get(contentId);
    if (writing) {
      await writing;
      return { contentId, isNew: false };
    }
    const present = this.#contents.find(contentId);
    if (this.#contents.isStored(present)) return { contentId, isNew: false };
    if (present && !present.deleted) this.#contents.damaged.noteStoredAgain();
    const compressed =
      compressor && this.#options.indexVersion >= 2 ? compressContent(compressor, data) : undefined;
    const plaintext = compressed ?? data;
    const content = {
      contentId,
      originalLength: data.length,
      timestampSeconds: this.#contents.timestampAfter(present),
    };
    const room = plaintext.length + encryptor.overheadBytes;
    const iv = contentIv(hashOf(contentId));
    const kind = prefix === '' ? 'p' : 'q';
    const appended = this.#contents.session.append(kind, [content], room, (out) => [
      {
        packedLength: encryptor.seal([plaintext], iv, out),
        compressionHeaderId: compressed ? (compressor?.headerId ?? 0) : 0,
      },
    ]);
    this.#writing.set(contentId, appended);
    try {
      await appended;
    } finally {
      this.#writing.delete(contentId);
    }
    return { contentId, isNew: true };
  }
}
