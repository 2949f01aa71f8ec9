import { NamespaceFilter } from '../../backup/index.ts';
import { type Backup, hasPlace, isNew } from '../../kube/index.ts';
import { statusOf } from './backup-kind.ts';

/** A step of a backup on its way to its run. */
export interface QueueStep {
  readonly backup: Backup;
  readonly phase: 'Queued' | 'ReadyToStart';
  /** From 1; none where it is ready. */
  readonly position: number | undefined;
}

const positionOf = (backup: Backup): number => statusOf(backup).queuePosition ?? 0;

const byAge = (a: Backup, b: Backup): number =>
  compare(a.metadata.creationTimestamp ?? '', b.metadata.creationTimestamp ?? '') ||
  compare(a.metadata.name, b.metadata.name);
const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

export interface QueueLimits {
  /** All of the cluster. */
  readonly namespaces: readonly string[];
  readonly runningMax: number;
  /** Whose pods are still to be thawed: nobody takes their namespaces meanwhile. */
  readonly frozen?: readonly Backup[];
  /**
   * Whether one cannot start yet for a reason of its own: it keeps its place, and nobody waits for
   * it.
   */
  readonly isHeld?: (backup: Backup) => boolean;
}

/**
 * What is due in the queue: new backups get a place in it, and those that may start are ready to.
 * As Velero's queue (pkg/controller, backup_queue_controller.go): so many run at once, and no two
 * that take the same namespace; one that has to wait for another is overtaken by those behind it
 * that do not.
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
    // One that is new is queued first, so that everybody sees it.
    if (running.length + ready.size >= runningMax || statusOf(backup).phase !== 'Queued') break;
    if (isHeld(backup)) continue;
    // Those behind it must not take what it waits for.
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

/**
 * Namespaces that backups take, one after the other. Thousands may wait, most of them with the same
 * lists.
 */
class TakenNamespaces {
  readonly #all: readonly string[];
  readonly #taken = new Set<string>();
  /**
   * Lists that were taken before, and whether they stand for anything: then the same ones are not
   * free.
   */
  readonly #known = new Map<string, boolean>();

  constructor(all: readonly string[]) {
    this.#all = all;
  }

  /** Returns whether all that it takes was free. */
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

/** Patterns that are wrong take none: validation says so later. */
function namespacesOf({ spec }: Backup, all: readonly string[]): readonly string[] {
  try {
    const includes = spec?.includedNamespaces ?? [];
    return NamespaceFilter.of(all, includes, spec?.excludedNamespaces ?? []).resolved;
  } catch {
    return [];
  }
}
