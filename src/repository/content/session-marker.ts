import { z } from 'zod';
import { asBuffer, formatGoTime, type Nanoseconds, parseGoTime } from '../../base/index.ts';
import type { BlobId, BlobStorage } from '../../blob/index.ts';
import type { ContentManagerOptions } from './content-options.ts';
import { type BlobCodec, openBlob, sealBlob } from './sealed-blob.ts';
import type { SessionId } from './session.ts';

/** Names, times and a path. */
const MARKER_BYTES_MAX = 64 << 10;
/** Six bytes each in JSON at most. */
const PATH_MAX = 8 << 10;
const OWNER_MAX = 1 << 10;
const markerSchema = z.looseObject({
  id: z.string(),
  checkpointTime: z.string(),
  // Ours. Kopia ignores them. Markers of older versions have no owner.
  longshorePath: z.string().optional(),
  longshoreOwner: z.string().optional(),
});

/** The user, the host and the path of an upload. */
export interface UploadSource {
  readonly userName: string;
  readonly host: string;
  readonly path: string;
}

const ownerOf = ({ userName, host }: UploadSource): string => `${userName}@${host}`;

export interface StoredMarker {
  readonly session: string;
  readonly checkpointNs: Nanoseconds;
  /** Unknown for Kopia's sessions. */
  readonly uploadPath: string | undefined;
  /** `user@host`. Unknown for Kopia's sessions, and for those of older versions. */
  readonly uploadOwner: string | undefined;
}

/** Whether the session is of an upload of this source. Without an owner, the path decides. */
export const isMarkerOf = (
  { uploadPath, uploadOwner }: StoredMarker,
  source: UploadSource,
): boolean =>
  uploadPath === source.path && (uploadOwner === undefined || uploadOwner === ownerOf(source));

/** Throws `BLOB_NOT_FOUND`, and other errors if the marker cannot be read. */
export async function readMarker(
  storage: BlobStorage,
  codec: BlobCodec,
  id: BlobId,
): Promise<StoredMarker> {
  const sealed = await storage.getBlob(id, { lengthMax: MARKER_BYTES_MAX });
  const plaintext = asBuffer(openBlob(codec, id, sealed)).toString('utf8');
  const marker = markerSchema.parse(JSON.parse(plaintext));
  return {
    session: marker.id,
    checkpointNs: parseGoTime(marker.checkpointTime),
    uploadPath: marker.longshorePath,
    uploadOwner: marker.longshoreOwner,
  };
}

/** A marker that is too long to be read would keep its session from being deleted. */
function sourceFields(source: UploadSource | undefined): Record<string, string> {
  if (!source || source.path.length > PATH_MAX || ownerOf(source).length > OWNER_MAX) return {};
  return { longshorePath: source.path, longshoreOwner: ownerOf(source) };
}

interface SealedMarker {
  readonly id: BlobId;
  readonly bytes: Uint8Array;
}

/**
 * The blob that keeps other clients' pack deletion away until an index names the session's packs.
 */
export class SessionMarker {
  readonly #options: ContentManagerOptions;
  readonly #session: SessionId;
  readonly #startedAtNs: Nanoseconds;
  /** For the upload after a kill. */
  uploadSource: UploadSource | undefined;
  #sealed: SealedMarker | undefined;
  /** Put since, to learn the time. */
  readonly #later: BlobId[] = [];
  #firstPut: Promise<void> | undefined;

  constructor(options: ContentManagerOptions, session: SessionId) {
    this.#options = options;
    this.#session = session;
    this.#startedAtNs = options.clock.nowNs();
  }

  /** Whether it is put, or may be: then it has to be deleted at the end. */
  get isMade(): boolean {
    return this.#sealed !== undefined;
  }

  /** Resolves when it is there; puts it once. Throws what the storage throws. */
  async put(): Promise<SealedMarker> {
    const { storage } = this.#options;
    this.#sealed ??= this.#seal();
    const sealed = this.#sealed;
    this.#firstPut ??= storage.putBlob(sealed.id, [sealed.bytes]);
    try {
      await this.#firstPut;
    } catch (error) {
      // Whoever only asked for the time does without it: the next one tries again.
      this.#firstPut = undefined;
      throw error;
    }
    return sealed;
  }

  #seal(): SealedMarker {
    const { codec, clock, client } = this.#options;
    const marker = {
      id: this.#session,
      startTime: formatGoTime(this.#startedAtNs),
      checkpointTime: formatGoTime(clock.nowNs()),
      username: client.username,
      hostname: client.hostname,
      ...sourceFields(this.uploadSource),
    };
    return sealBlob(codec, 's', `-${this.#session}`, Buffer.from(JSON.stringify(marker)));
  }

  /**
   * The time of the storage's clock: that of a marker, which is put now. Each has a name of its
   * own, as Kopia's have when it checkpoints a session: in a bucket with object lock a blob that is
   * put again would be another version. Throws what the storage throws.
   */
  async storageTime(): Promise<Nanoseconds> {
    const { storage } = this.#options;
    const isThere = this.#firstPut !== undefined;
    const first = await this.put();
    if (!isThere) return (await storage.getMetadata(first.id)).timestampNs;
    const { id, bytes } = this.#seal();
    this.#later.push(id);
    await storage.putBlob(id, [bytes]);
    return (await storage.getMetadata(id)).timestampNs;
  }

  /** The index names every pack now. */
  async delete(): Promise<void> {
    const { storage } = this.#options;
    for (const id of this.#later) await storage.deleteBlob(id);
    if (this.#sealed) await storage.deleteBlob(this.#sealed.id);
  }
}
