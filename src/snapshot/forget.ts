import { CodedError } from '../base/index.ts';
import { type Manifest, type ManifestId, type Repository } from '../repository/index.ts';

/** Snapshots deleted with one flush. Our choice: a kill leaves whole batches. */
const BATCH = 200;

export interface ForgetResult {
  readonly forgotten: readonly string[];
  /** Snapshots that do not exist, perhaps because an earlier call has deleted them. */
  readonly missing: readonly string[];
}

type Tags = Readonly<Record<string, string>>;

export interface ForgetOptions {
  readonly signal: AbortSignal;
  readonly batch?: number;
  /** Called for each existing snapshot. If false, it stays and is in no list of the result. */
  readonly mayForget?: (id: string, tags: Tags) => Promise<boolean>;
}

/** Reads only the tags, because other fields may be damaged. */
function tagsIn({ data }: Manifest): Tags {
  const { tags } = (data ?? {}) as { readonly tags?: unknown };
  const pairs = typeof tags === 'object' && tags !== null ? Object.entries(tags) : [];
  return Object.fromEntries(pairs.filter(([, value]) => typeof value === 'string'));
}

/**
 * Deletes snapshot manifests, many with each flush. Full maintenance frees their contents. Can be
 * repeated: already deleted snapshots are `missing`. Throws `MANIFESTS_UNREADABLE` if missing
 * snapshots may be unreadable. After a storage failure, earlier batches stay deleted.
 */
export async function forgetSnapshots(
  repository: Repository,
  ids: readonly string[],
  { signal, batch = BATCH, mayForget = () => Promise.resolve(true) }: ForgetOptions,
): Promise<ForgetResult> {
  const { manifests } = repository;
  const present = new Set<string>();
  const wantedIds = new Set(ids);
  const wanted = [...wantedIds];
  const tagsOf = new Map<string, Tags>();
  for (const manifest of await manifests.find({ type: 'snapshot' })) {
    present.add(manifest.id);
    if (wantedIds.has(manifest.id)) tagsOf.set(manifest.id, tagsIn(manifest));
  }
  const missing = wanted.filter((id) => !present.has(id));
  if (missing.length > 0 && !(await manifests.areComplete())) throw listIncomplete(missing);
  const forgotten: string[] = [];
  for (const [id, tags] of tagsOf) if (await mayForget(id, tags)) forgotten.push(id);
  await repository.freeRoom(async () => {
    for (let from = 0; from < forgotten.length; from += batch) {
      signal.throwIfAborted();
      for (const id of forgotten.slice(from, from + batch)) manifests.delete(id as ManifestId);
      await repository.flush();
    }
  });
  return { forgotten, missing };
}

/** The snapshots may be in an unreadable part of the list. */
function listIncomplete([first = '']: readonly string[]): CodedError {
  const text = `snapshot ${first} was not found, but a part of the list of snapshots cannot be read, so it may still exist. Run "longshore repository repair"`;
  return new CodedError('MANIFESTS_UNREADABLE', text);
}
