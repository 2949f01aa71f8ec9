import type { About, BackupLog } from '../../backup/index.ts';
import type { Discovery, KubeClient } from '../../kube/index.ts';
import type { FinishedRestoreItem, StartedRestoreOperation } from '../run/contract.ts';
import { type RestoreRunOptions, runRestore } from '../run/run-restore.ts';
import { NewKinds } from '../run/new-kinds.ts';
import { RehearsedCluster } from './rehearsed-cluster.ts';
import { isFields } from '../actions/fields.ts';

export interface RehearsalNote {
  readonly level: 'info' | 'warning' | 'error';
  readonly text: string;
}

/**
 * The predicted outcome of one item, with reasons. An item with only warnings is "skipped", because
 * the restore is Completed. Velero's list of restored resources calls it "failed".
 */
export interface RehearsedItem extends Pick<
  FinishedRestoreItem,
  'kind' | 'namespace' | 'name' | 'outcome' | 'restoredAs'
> {
  readonly notes: readonly RehearsalNote[];
}

/** The volumes of a rehearsed run, with warnings that follow the items. */
export interface RehearsedVolumeSteps {
  volumes(log: BackupLog): Pick<RestoreRunOptions, 'volumes' | 'podVolumes' | 'volumesInPlace'>;
  begun(operations: readonly StartedRestoreOperation[]): void;
  done(item: FinishedRestoreItem): void;
  over(log: BackupLog): Promise<void>;
}

export interface RehearsalOptions extends Pick<
  RestoreRunOptions,
  'restore' | 'backup' | 'items' | 'actions' | 'modifiers' | 'policies' | 'priorities' | 'signal'
> {
  readonly client: Pick<KubeClient, 'find' | 'collect' | 'create' | 'patch'>;
  readonly discovery: Pick<Discovery, 'find' | 'findIn' | 'refresh'>;
  /** The volume steps of the run, which change nothing. */
  readonly run?: RehearsedVolumeSteps | undefined;
  /** Wait for objects that are being deleted. Default: one second. */
  readonly waitMs?: number;
  /** Called for each item in the order of the restore. */
  readonly onItem: (item: RehearsedItem) => void;
  /** Called for notes about no restored item, such as items left out or unreadable. */
  readonly onNote: (note: RehearsalNote, about: About | undefined) => void;
}

export interface RehearsalResult {
  readonly items: number;
  /** The counts that the status of the restore would have. */
  readonly warnings: number;
  readonly errors: number;
  /** Items in new namespaces or of new kinds. The API server cannot validate them yet. */
  readonly unchecked: number;
}

/** Lines that wait for their item. The lines of items left out would wait forever. */
const WAITING_MAX = 200;
/** Wait for objects that are being deleted. A rehearsal reports, and does not wait for them. */
const SOON_MS = 1000;

/**
 * Runs a restore as the server would, and changes nothing: creations and patches are dry runs.
 * Calls no plugins of others, and starts no data movement. Throws as {@link runRestore} does.
 */
export async function rehearseRestore(options: RehearsalOptions): Promise<RehearsalResult> {
  const { client, discovery, run, waitMs = SOON_MS, onItem, onNote } = options;
  const told = new Set<string>();
  const begun = (operations: readonly StartedRestoreOperation[]): void => {
    const open = operations.filter(({ operationId }) => !told.has(operationId));
    for (const { operationId } of open) told.add(operationId);
    run?.begun(open);
  };
  const kinds = new NewKinds();
  const lines = new ItemLines(onNote, (resource) => discovery.find(resource)?.kind);
  let unchecked = 0;
  const cluster = new RehearsedCluster({
    client,
    kinds,
    isServed: ({ group, plural }) => {
      const found = discovery.findIn(group, plural);
      return found?.group === group && found.plural === plural;
    },
    onChange: ({ namespace = '', name }, change) => {
      const fields = changedFields(change);
      if (fields.length > 0) lines.changed({ namespace, name }, fields.join(', '));
    },
    onUnchecked: () => unchecked++,
  });
  const { totalItems } = await runRestore({
    ...options,
    client: cluster,
    discovery: {
      find: (name) => {
        const [resource = '', ...group] = name.split('.');
        return discovery.find(name) ?? kinds.findIn(group.join('.'), resource);
      },
      findIn: (group, name) => discovery.findIn(group, name) ?? kinds.findIn(group, name),
      // New kinds are known from the definitions in the backup.
      refresh: () => Promise.resolve(),
    },
    ...run?.volumes(lines),
    log: lines,
    terminatingMs: waitMs,
    resourceTimeoutMs: waitMs,
    pollMs: waitMs,
    sink: {
      begun,
      put: (item) => {
        begun(item.operations);
        run?.done(item);
        const { kind, namespace, name, restoredAs } = item;
        const notes = lines.take(item);
        const hasFailed = notes.some(({ level }) => level === 'error');
        const outcome = item.outcome === 'failed' && !hasFailed ? 'skipped' : item.outcome;
        onItem({
          kind,
          namespace,
          name,
          outcome,
          notes,
          ...(restoredAs !== undefined && { restoredAs }),
        });
        return Promise.resolve();
      },
    },
  });
  await run?.over(lines);
  lines.flush();
  const { warnings, errors } = lines;
  return { items: totalItems, warnings, errors, unchecked };
}

interface Line {
  readonly note: RehearsalNote;
  readonly about: About;
}

/** Keeps log lines until their item is finished. */
class ItemLines implements BackupLog {
  readonly #onNote: RehearsalOptions['onNote'];
  readonly #kindOf: (resource: string) => string | undefined;
  #waiting: Line[] = [];
  warnings = 0;
  errors = 0;

  constructor(
    onNote: RehearsalOptions['onNote'],
    kindOf: (resource: string) => string | undefined,
  ) {
    this.#onNote = onNote;
    this.#kindOf = kindOf;
  }

  info(message: string, about?: About): void {
    this.#add({ level: 'info', text: message }, about);
  }

  warn(message: string, about?: About): void {
    this.warnings++;
    this.#add({ level: 'warning', text: message }, about);
  }

  error(message: string, about?: About): void {
    this.errors++;
    this.#add({ level: 'error', text: message }, about);
  }

  changed({ namespace, name }: { namespace: string; name: string }, fields: string): void {
    this.#add({ level: 'info', text: `changes ${fields}` }, { namespace, name });
  }

  #add(note: RehearsalNote, about: About | undefined): void {
    if (about?.name === undefined) this.#onNote(note, about);
    else this.#waiting.push({ note, about });
    const oldest = this.#waiting.length > WAITING_MAX ? this.#waiting.shift() : undefined;
    if (oldest) this.#onNote(oldest.note, oldest.about);
  }

  /** Returns the notes of a finished item. Older lines belong to items that were left out. */
  take(item: Pick<RehearsedItem, 'kind' | 'namespace' | 'name'>): RehearsalNote[] {
    const isOf = ({ about }: Line): boolean =>
      about.name === item.name &&
      (about.namespace ?? '') === item.namespace &&
      this.#isKind(about.resource, item.kind);
    const own = this.#waiting.filter(isOf);
    this.#waiting = this.#waiting.filter((line) => !isOf(line));
    return own.map(({ note }) => note);
  }

  /** Reports the remaining lines. */
  flush(): void {
    for (const { note, about } of this.#waiting) this.#onNote(note, about);
    this.#waiting = [];
  }

  #isKind(resource: string | undefined, kind: string): boolean {
    if (resource === undefined) return true;
    const known = this.#kindOf(resource);
    if (known !== undefined) return kind.endsWith(`/${known}`);
    // The cluster does not serve the type. Compare its group and the first letters of its plural.
    const [plural = '', ...group] = resource.split('.');
    const [name = '', , groupOfKind = ''] = kind.split('/').reverse();
    return groupOfKind === group.join('.') && plural.startsWith(name.toLowerCase().slice(0, -1));
  }
}

/** Our choice: a reader who wants more can look at the object. */
const FIELDS_MAX = 10;

/** Paths that a merge patch changes, such as `spec.replicas`. Long lists end with a number. */
export function changedFields(patch: object): string[] {
  const paths = [...pathsOf(patch, [])].filter(
    (path) => !path.startsWith('metadata.labels.velero.io/'),
  );
  if (paths.length <= FIELDS_MAX) return paths;
  return [...paths.slice(0, FIELDS_MAX), `and ${paths.length - FIELDS_MAX} more`];
}

function* pathsOf(value: object, at: readonly string[]): Generator<string> {
  for (const [key, child] of Object.entries(value) as [string, unknown][]) {
    if (isFields(child) && Object.keys(child).length > 0) yield* pathsOf(child, [...at, key]);
    else yield [...at, key].join('.');
  }
}
