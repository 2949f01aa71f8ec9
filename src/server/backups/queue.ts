import { NamespaceFilter } from '../../backup/index.ts';
import { type Backup, hasPlace, isNew } from '../../kube/index.ts';
import { statusOf } from './backup-kind.ts';

/** A phase update on the way to a run. */
export interface QueueStep {
  readonly backup: Backup;
  readonly phase: 'Queued' | 'ReadyToStart';
  /** Starts at 1; undefined if the backup is ready. */
  readonly position: number | undefined;
}

const positionOf = (backup: Backup): number => statusOf(backup).queuePosition ?? 0;

const byAge = (a: Backup, b: Backup): number =>
  compare(a.metadata.creationTimestamp ?? '', b.metadata.creationTimestamp ?? '') ||
  compare(a.metadata.name, b.metadata.name);
const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

export interface QueueLimits {
  /** All namespaces of the cluster. */
  readonly namespaces: readonly string[];
  readonly runningMax: number;
  /** Deleted backups with frozen pods. Their namespaces stay blocked. */
  readonly frozen?: readonly Backup[];
  /** A backup that cannot start yet for another reason keeps its position and blocks no other. */
  readonly isHeld?: (backup: Backup) => boolean;
}

/**
 * Plans the queue: new backups get a position, and backups that may start become ready. As in
 * Velero (pkg/controller/backup_queue_controller.go), running backups have a limit and share no
 * namespace. A blocked backup may be overtaken.
 */
export function planQueue(
  backups: readonly Backup[],
  { namespaces, runningMax, frozen = [], isHeld = () => false }: QueueLimits,
): QueueStep[] {
  const of = (isThere: (phase: string | undefined) => boolean): Backup[] =>
    backups.filter((backup) => isThere(statusOf(backup).phase));
  const running = of(hasPlace);
  const queued = of((phase) => phase === 'Queued').sort(
    (a, b) => positionOf(a) - positionOf(b) || byAge(a, b),
  );
  const waiting = [...queued, ...of(isNew).sort(byAge)];
  const ready = new Set<Backup>();
  const taken = new TakenNamespaces(namespaces);
  if (running.length < runningMax) for (const backup of [...running, ...frozen]) taken.take(backup);
  for (const backup of waiting) {
    // New backups are queued first, so that users see the phase.
    if (running.length + ready.size >= runningMax || statusOf(backup).phase !== 'Queued') break;
    if (isHeld(backup)) continue;
    // Also takes the namespaces of a blocked backup, against those behind it.
    if (taken.take(backup)) ready.add(backup);
  }
  const steps: QueueStep[] = [...ready].map((backup) => ({
    backup,
    phase: 'ReadyToStart',
    position: undefined,
  }));
  const left = waiting.filter((backup) => !ready.has(backup));
  for (const [index, backup] of left.entries()) {
    const position = index + 1;
    if (statusOf(backup).phase === 'Queued' && positionOf(backup) === position) continue;
    steps.push({ backup, phase: 'Queued', position });
  }
  return steps;
}

/** Namespaces taken so far. Thousands of backups may wait, most with the same lists. */
class TakenNamespaces {
  readonly #all: readonly string[];
  readonly #taken = new Set<string>();
  /** Lists seen before, and whether they match any namespace. If so, they are not free again. */
  readonly #known = new Map<string, boolean>();

  constructor(all: readonly string[]) {
    this.#all = all;
  }

  /** Returns whether all its namespaces were free. */
  take(backup: Backup): boolean {
    const { includedNamespaces, excludedNamespaces } = backup.spec ?? {};
    const key = JSON.stringify([includedNamespaces ?? [], excludedNamespaces ?? []]);
    const known = this.#known.get(key);
    if (known !== undefined) return !known;
    const own = namespacesOf(backup, this.#all);
    this.#known.set(key, own.length > 0);
    const isFree = !own.some((name) => this.#taken.has(name));
    for (const name of own) this.#taken.add(name);
    return isFree;
  }
}

/** Invalid patterns take none; validation reports them later. */
function namespacesOf({ spec }: Backup, all: readonly string[]): readonly string[] {
  try {
    const includes = spec?.includedNamespaces ?? [];
    return NamespaceFilter.of(all, includes, spec?.excludedNamespaces ?? []).resolved;
  } catch {
    return [];
  }
}
