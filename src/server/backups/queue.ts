import { type Backup, NamespaceFilter } from '../../backup/index.ts';

/** A step of a backup on its way to its run. */
export interface QueueStep {
  readonly backup: Backup;
  readonly phase: 'Queued' | 'ReadyToStart';
  /** From 1; none where it is ready. */
  readonly position: number | undefined;
}

interface QueuedStatus {
  phase?: string;
  queuePosition?: number;
}

const statusOf = ({ status = {} }: Backup): QueuedStatus => status as QueuedStatus;
const positionOf = (backup: Backup): number => statusOf(backup).queuePosition ?? 0;

const byAge = (a: Backup, b: Backup): number =>
  compare(a.metadata.creationTimestamp ?? '', b.metadata.creationTimestamp ?? '') ||
  compare(a.metadata.name, b.metadata.name);
const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

/**
 * What is due in the queue: new backups get a place in it, and those that may start are ready to. As Velero's queue (pkg/controller,
 * backup_queue_controller.go): so many run at once, and no two that take the same namespace; one that has to wait for another is overtaken
 * by those behind it that do not.
 */
export function planQueue(
  backups: readonly Backup[],
  {
    namespaces,
    runningMax,
  }: { readonly namespaces: readonly string[]; readonly runningMax: number },
): QueueStep[] {
  const ofPhase = (...phases: string[]): Backup[] =>
    backups.filter((backup) => phases.includes(statusOf(backup).phase ?? ''));
  const running = ofPhase('ReadyToStart', 'InProgress');
  const queued = ofPhase('Queued').sort((a, b) => positionOf(a) - positionOf(b) || byAge(a, b));
  const waiting = [...queued, ...ofPhase('', 'New').sort(byAge)];
  const spaces = new Map(
    waiting.concat(running).map((b) => [b, namespacesOf(b, namespaces)] as const),
  );
  const taken = new Set(running.flatMap((backup) => [...(spaces.get(backup) ?? [])]));
  const ready: Backup[] = [];
  for (const backup of waiting) {
    const own = spaces.get(backup) ?? new Set();
    const isFree = !own.values().some((name) => taken.has(name));
    // Those behind it must not take what it waits for.
    for (const name of own) taken.add(name);
    const isNew = statusOf(backup).phase !== 'Queued';
    // One that is new is queued first, so that everybody sees it.
    if (isFree && !isNew && running.length + ready.length < runningMax) ready.push(backup);
  }
  const steps: QueueStep[] = ready.map((backup) => ({
    backup,
    phase: 'ReadyToStart',
    position: undefined,
  }));
  const left = waiting.filter((backup) => !ready.includes(backup));
  for (const [index, backup] of left.entries()) {
    const position = index + 1;
    if (statusOf(backup).phase === 'Queued' && positionOf(backup) === position) continue;
    steps.push({ backup, phase: 'Queued', position });
  }
  return steps;
}

/** Patterns that are wrong take none: validation says so later. */
function namespacesOf({ spec }: Backup, all: readonly string[]): Set<string> {
  try {
    const includes = spec?.includedNamespaces ?? [];
    return new Set(NamespaceFilter.of(all, includes, spec?.excludedNamespaces ?? []).resolved);
  } catch {
    return new Set();
  }
}
