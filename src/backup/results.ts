import { BoundedList, type Logger, messageOf, silentLogger } from '../base/index.ts';

/**
 * What a line of a backup's log is about. Velero sorts results by the namespace: none at all, `''`
 * for the cluster, or its name.
 */
export interface About {
  /** As `deployments.apps`. */
  readonly resource?: string;
  readonly namespace?: string;
  readonly name?: string;
  readonly error?: unknown;
}

/**
 * Where the parts of a backup say what they do. Warnings and errors are counted, and end up in the
 * backup's results.
 */
export interface BackupLog {
  info(message: string, about?: About): void;
  warn(message: string, about?: About): void;
  error(message: string, about?: About): void;
}

/** Velero's `<backup>-results.gz`: pkg/util/results. */
export type ResultLists = {
  readonly velero?: string[];
  readonly cluster?: string[];
  readonly namespaces?: Record<string, string[]>;
};

/** Of each kind. Our choice: a reader of more has lost the way, and all are in the log. */
const HELD_MAX = 10_000;

/** A warning or an error, as it will be in the results. */
export interface ResultEntry {
  readonly level: 'warn' | 'error';
  readonly namespace?: string | undefined;
  readonly text: string;
}

type Entry = Pick<ResultEntry, 'namespace' | 'text'>;

/** Counts and keeps what went wrong, and hands everything on to the log. */
export class Results implements BackupLog {
  readonly #logger: Logger;
  readonly #warnings = new BoundedList<Entry>(HELD_MAX);
  readonly #errors = new BoundedList<Entry>(HELD_MAX);

  readonly #onEntry: ((entry: ResultEntry) => void) | undefined;
  readonly #textOf: (message: string, about: About) => string;

  /**
   * `form`: those of a backup tell what they are about, as lines of a log; those of a restore are
   * sentences alone, as in Velero.
   */
  constructor(
    logger: Logger = silentLogger,
    onEntry?: (entry: ResultEntry) => void,
    form: 'line' | 'sentence' = 'line',
  ) {
    this.#logger = logger;
    this.#onEntry = onEntry;
    this.#textOf = form === 'line' ? lineOf : sentenceOf;
  }

  /** One of an earlier try: it counts, and is in the log already. */
  restore({ level, namespace, text }: ResultEntry): void {
    (level === 'warn' ? this.#warnings : this.#errors).add({ namespace, text });
  }

  get warningCount(): number {
    return this.#warnings.count;
  }

  get errorCount(): number {
    return this.#errors.count;
  }

  get lists(): { warnings: ResultLists; errors: ResultLists } {
    return { warnings: listsOf(this.#warnings), errors: listsOf(this.#errors) };
  }

  info(message: string, about: About = {}): void {
    this.#logger.info(fieldsOf(about), message);
  }

  warn(message: string, about: About = {}): void {
    this.#logger.warn(fieldsOf(about), message);
    this.#add('warn', message, about);
  }

  error(message: string, about: About = {}): void {
    this.#logger.error(fieldsOf(about), message);
    this.#add('error', message, about);
  }

  #add(level: ResultEntry['level'], message: string, about: About): void {
    const entry = { level, namespace: about.namespace, text: this.#textOf(message, about) };
    this.restore(entry);
    this.#onEntry?.(entry);
  }
}

const fieldsOf = ({ error, ...about }: About): object => ({
  ...about,
  ...(error !== undefined && { error: messageOf(error) }),
});

/** Velero: pkg/util/logging/log_counter_hook.go; a part that is not there is left out. */
function lineOf(message: string, { resource, name, error }: About): string {
  const parts = [
    resource === undefined ? '' : ` resource: /${resource}`,
    name === undefined ? '' : ` name: /${name}`,
    ` message: /${message}`,
    error === undefined ? '' : ` error: /${messageOf(error)}`,
  ];
  return parts.join('');
}

/** As results of a restore have it. */
export const sentenceOf = (message: string, { error }: About): string =>
  error === undefined ? message : `${message}: ${messageOf(error)}`;

function listsOf(entries: BoundedList<Entry>): ResultLists {
  const velero: string[] = [];
  const cluster: string[] = [];
  const namespaces = new Map<string, string[]>();
  for (const { namespace, text } of entries.held) {
    if (namespace === undefined) velero.push(text);
    else if (namespace === '') cluster.push(text);
    else {
      const list = namespaces.get(namespace);
      if (list) list.push(text);
      else namespaces.set(namespace, [text]);
    }
  }
  if (entries.notHeld > 0)
    velero.push(` message: /and ${entries.notHeld} more, which are in the log`);
  return {
    ...(velero.length > 0 && { velero }),
    ...(cluster.length > 0 && { cluster }),
    ...(namespaces.size > 0 && { namespaces: Object.fromEntries(namespaces) }),
  };
}
