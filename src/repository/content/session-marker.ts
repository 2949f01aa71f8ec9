import { z } from 'zod';
import { asBuffer, formatGoTime, type Nanoseconds, parseGoTime } from '../../base/index.ts';
import type { BlobId, BlobStorage } from '../../blob/index.ts';
import type { ContentManagerOptions } from './content-options.ts';
import { type BlobCodec, openBlob, sealBlob } from './sealed-blob.ts';
import type { SessionId } from './session.ts';

/** A marker holds names, times and a path. */
const MARKER_BYTES_MAX = 64 << 10;
/** JSON takes at most six bytes a character. */
const PATH_MAX = 8 << 10;
const OWNER_MAX = 1 << 10;
const markerSchema = z.looseObject({
  id: z.string(),
  checkpointTime: z.string(),
  // Longshore's own fields, which Kopia ignores. Markers of older versions have no owner.
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
  /** Undefined for Kopia's sessions. */
  readonly uploadPath: string | undefined;
  /** `user@host`. Undefined for sessions of Kopia and older versions. */
  readonly uploadOwner: string | undefined;
}

/** Whether the session belongs to an upload of this source. Without an owner, the path decides. */
export const isMarkerOf = (
  { uploadPath, uploadOwner }: StoredMarker,
  source: UploadSource,
): boolean =>
  uploadPath === source.path && (uploadOwner === undefined || uploadOwner === ownerOf(source));

/** Throws `BLOB_NOT_FOUND`, and other errors if the marker is unreadable. */
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

/** Omits a long source: an unreadable marker would keep its session from being deleted. */
function sourceFields(source: UploadSource | undefined): Record<string, string> {
  if (!source || source.path.length > PATH_MAX || ownerOf(source).length > OWNER_MAX) return {};
  return { longshorePath: source.path, longshoreOwner: ownerOf(source) };
}

interface SealedMarker {
  readonly id: BlobId;
  readonly bytes: Uint8Array;
}

/** Stops other clients from deleting the session's packs until an index names them. */
export class SessionMarker {
  readonly #options: ContentManagerOptions;
  readonly #session: SessionId;
  readonly #startedAtNs: Nanoseconds;
  /** Lets the next upload find the session after a kill. */
  uploadSource: UploadSource | undefined;
  #sealed: SealedMarker | undefined;
  /** Further markers, put to read the storage's clock. */
  readonly #later: BlobId[] = [];
  #firstPut: Promise<void> | undefined;

  constructor(options: ContentManagerOptions, session: SessionId) {
    this.#options = options;
    this.#session = session;
    this.#startedAtNs = options.clock.nowNs();
  }

  /** Whether the marker may exist, so that it must be deleted at the end. */
  get isMade(): boolean {
    return this.#sealed !== undefined;
  }

  /** Puts the marker once, and resolves when it exists. Throws storage errors. */
  async put(): Promise<SealedMarker> {
    const { storage } = this.#options;
    this.#sealed ??= this.#seal();
    const sealed = this.#sealed;
    this.#firstPut ??= storage.putBlob(sealed.id, [sealed.bytes]);
    try {
      await this.#firstPut;
    } catch (error) {
      // Callers that only need the time ignore this failure. The next call tries again.
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
   * The storage's current time, as stamped on a marker put now. Each marker has its own name, like
   * Kopia's checkpoints: with object lock, a second put to one name would add a version. Throws
   * storage errors.
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

  /** Call this when the index names every pack. */
  async delete(): Promise<void> {
    const { storage } = this.#options;
    for (const id of this.#later) await storage.deleteBlob(id);
    if (this.#sealed) await storage.deleteBlob(this.#sealed.id);
  }
}
