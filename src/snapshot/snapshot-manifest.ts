import { z } from 'zod';
import {
  CodedError,
  formatGoTime,
  goJson,
  isCode,
  type Nanoseconds,
  parseGoTime,
  parseJsonLossless,
  RawNumber,
} from '../base/index.ts';
import type { Manifest, ManifestId, Repository } from '../repository/index.ts';
import { type DirectoryEntry, encodeEntry, parseEntry, sumOrZero } from './directory/directory.ts';
import { type SourceInfo, sourceLabels } from './source.ts';

/** Counters of one upload, as stored in the manifest. */
export interface SnapshotStats {
  readonly totalSize: number;
  readonly excludedTotalSize: number;
  readonly fileCount: number;
  readonly cachedFiles: number;
  readonly nonCachedFiles: number;
  readonly dirCount: number;
  readonly excludedFileCount: number;
  readonly excludedDirCount: number;
  readonly ignoredErrorCount: number;
  readonly errorCount: number;
}

/** A snapshot: the state of a source at one time. */
export interface Snapshot {
  readonly id: ManifestId;
  readonly source: SourceInfo;
  readonly description: string;
  readonly startTimeNs: Nanoseconds;
  readonly endTimeNs: Nanoseconds;
  readonly stats: SnapshotStats;
  /** Why it is incomplete: `checkpoint`, `canceled`, `limit reached`. */
  readonly incomplete?: string | undefined;
  readonly rootEntry?: DirectoryEntry | undefined;
  readonly tags?: Readonly<Record<string, string>> | undefined;
  readonly pins?: readonly string[] | undefined;
}
export type NewSnapshot = Omit<Snapshot, 'id'>;

/** Kopia's command line adds this prefix to the users' tag keys. */
export const USER_TAG_PREFIX = 'tag:';
const RESERVED_LABELS = ['type', 'hostname', 'username', 'path'];

const schema = z.looseObject({
  source: z.object({ host: z.string(), userName: z.string(), path: z.string() }),
  description: z.string().optional().default(''),
  startTime: z.string(),
  endTime: z.string(),
  stats: z
    .looseObject({
      totalSize: sumOrZero,
      excludedTotalSize: sumOrZero,
      fileCount: sumOrZero,
      cachedFiles: sumOrZero,
      nonCachedFiles: sumOrZero,
      dirCount: sumOrZero,
      excludedFileCount: sumOrZero,
      excludedDirCount: sumOrZero,
      ignoredErrorCount: sumOrZero,
      errorCount: sumOrZero,
    })
    .optional()
    .default({} as never),
  incomplete: z.string().optional(),
  rootEntry: z.unknown().optional(),
  tags: z.record(z.string(), z.string()).nullish(),
  pins: z.array(z.string()).nullish(),
});

/** Throws `DAMAGED_SNAPSHOT`. */
export function parseSnapshot(manifest: Manifest): Snapshot {
  try {
    const data = schema.parse(manifest.data);
    return {
      id: manifest.id,
      source: data.source,
      description: data.description,
      startTimeNs: parseGoTime(data.startTime),
      endTimeNs: parseGoTime(data.endTime),
      stats: data.stats,
      incomplete: data.incomplete === '' ? undefined : data.incomplete,
      rootEntry: data.rootEntry ? parseEntry(data.rootEntry) : undefined,
      tags: data.tags ?? undefined,
      pins: data.pins ?? undefined,
    };
  } catch (cause) {
    const { id } = manifest;
    const text = `the manifest of snapshot ${id} is damaged: restore an earlier version of the blob, or give the snapshot up with longshore snapshot delete ${id}`;
    throw new CodedError('DAMAGED_SNAPSHOT', text, { cause, facts: { snapshot: id } });
  }
}

/** The manifest's data in Kopia's field order. */
export function encodeSnapshot(snapshot: NewSnapshot): unknown {
  const { source, stats, rootEntry, tags, pins } = snapshot;
  return {
    id: '',
    source: { host: source.host, userName: source.userName, path: source.path },
    description: snapshot.description,
    startTime: formatGoTime(snapshot.startTimeNs),
    endTime: formatGoTime(snapshot.endTimeNs),
    stats: {
      totalSize: stats.totalSize,
      excludedTotalSize: stats.excludedTotalSize,
      fileCount: stats.fileCount,
      cachedFiles: stats.cachedFiles,
      nonCachedFiles: stats.nonCachedFiles,
      dirCount: stats.dirCount,
      excludedFileCount: stats.excludedFileCount,
      excludedDirCount: stats.excludedDirCount,
      ignoredErrorCount: stats.ignoredErrorCount,
      errorCount: stats.errorCount,
    },
    incomplete: snapshot.incomplete,
    rootEntry: rootEntry && new RawNumber(encodeEntry(rootEntry)),
    tags: tags && Object.keys(tags).length > 0 ? new Map(Object.entries(tags)) : undefined,
    pins: pins && pins.length > 0 ? [...pins].sort() : undefined,
  };
}

/** Adds the manifest. Durable after a flush. Throws `BAD_TAG`. */
export function saveSnapshot(repository: Repository, snapshot: NewSnapshot): ManifestId {
  const reserved = Object.keys(snapshot.tags ?? {}).find((key) => RESERVED_LABELS.includes(key));
  if (reserved)
    throw new CodedError('BAD_TAG', `"${reserved}" is reserved and cannot be the key of a tag`);
  const labels = { type: 'snapshot', ...sourceLabels(snapshot.source), ...snapshot.tags };
  // Encode and parse, so that the cached value has the same shape as after reading.
  return repository.manifests.put(labels, parseJsonLossless(goJson(encodeSnapshot(snapshot))));
}

export interface SnapshotFilter {
  source?: SourceInfo | undefined;
  tags?: Readonly<Record<string, string>> | undefined;
}

/** Oldest first. Throws `DAMAGED_SNAPSHOT` if any is damaged, for callers that need all. */
export async function listSnapshots(
  repository: Repository,
  filter: SnapshotFilter = {},
): Promise<Snapshot[]> {
  const { snapshots, damaged } = await listReadableSnapshots(repository, filter);
  const [first] = damaged;
  if (first) throw first;
  return snapshots;
}

export interface ReadableSnapshots {
  /** Oldest first. */
  readonly snapshots: Snapshot[];
  /** `DAMAGED_SNAPSHOT` for each damaged snapshot. The message names it. */
  readonly damaged: CodedError[];
}

/** Readable and damaged snapshots, for callers that tolerate damaged manifests. */
export async function listReadableSnapshots(
  repository: Repository,
  { source, tags }: SnapshotFilter = {},
): Promise<ReadableSnapshots> {
  const labels = { type: 'snapshot', ...(source && sourceLabels(source)), ...tags };
  const snapshots: Snapshot[] = [];
  const damaged: CodedError[] = [];
  for (const manifest of await repository.manifests.find(labels)) {
    try {
      snapshots.push(parseSnapshot(manifest));
    } catch (error) {
      if (!isCode(error, 'DAMAGED_SNAPSHOT')) throw error;
      damaged.push(error);
    }
  }
  snapshots.sort((a, b) =>
    a.startTimeNs < b.startTimeNs ? -1 : a.startTimeNs > b.startTimeNs ? 1 : 0,
  );
  return { snapshots, damaged };
}

/** Throws `SNAPSHOT_NOT_FOUND`, `DAMAGED_SNAPSHOT`. */
export async function getSnapshot(repository: Repository, id: string): Promise<Snapshot> {
  return parseSnapshot(await getSnapshotManifest(repository, id));
}

/** The stored manifest, even if damaged. Throws `SNAPSHOT_NOT_FOUND`. */
export async function getSnapshotManifest(repository: Repository, id: string): Promise<Manifest> {
  const manifest = (await repository.manifests.find({ type: 'snapshot' })).find(
    (candidate) => candidate.id === id,
  );
  if (manifest) return manifest;
  if (await repository.manifests.areComplete()) throw noSuchSnapshot(id);
  const text = `there is no snapshot ${id} in what can be read of the list of snapshots; a part of it is unreadable. Run "longshore repository repair"`;
  throw new CodedError('SNAPSHOT_NOT_FOUND', text);
}

export const noSuchSnapshot = (id: string): CodedError =>
  new CodedError('SNAPSHOT_NOT_FOUND', `there is no snapshot ${id} in the repository`);
