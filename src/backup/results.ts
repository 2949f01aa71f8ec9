import { BoundedList, type Logger, messageOf, silentLogger } from '../base/index.ts';

/**
 * The subject of a log line. Velero groups results by namespace: undefined for the backup itself,
 * `''` for the cluster, or a name.
 */
export interface About {
  /** For example `deployments.apps`. */
  readonly resource?: string;
  readonly namespace?: string;
  readonly name?: string;
  readonly error?: unknown;
}

/** Log of a backup's parts. Warnings and errors are counted and become the backup's results. */
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

/** Kept warnings, and kept errors. Our choice: more help no reader, and the log has all. */
const HELD_MAX = 10_000;

/** A warning or error as in the results. */
export interface ResultEntry {
  readonly level: 'warn' | 'error';
  readonly namespace?: string | undefined;
  readonly text: string;
}

type Entry = Pick<ResultEntry, 'namespace' | 'text'>;

/** Counts and keeps warnings and errors, and forwards all lines to the log. */
export class Results implements BackupLog {
  readonly #logger: Logger;
  readonly #warnings = new BoundedList<Entry>(HELD_MAX);
  readonly #errors = new BoundedList<Entry>(HELD_MAX);

  readonly #onEntry: ((entry: ResultEntry) => void) | undefined;
  readonly #textOf: (message: string, about: About) => string;

  /**
   * `form`: lines of a backup name their subject, as in a log. Lines of a restore are only the
   * sentence, as in Velero.
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

  /** Adds an entry of an earlier try, which is already in the log. */
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

/** Velero: pkg/util/logging/log_counter_hook.go. Missing parts are omitted. */
function lineOf(message: string, { resource, name, error }: About): string {
  const parts = [
    resource === undefined ? '' : ` resource: /${resource}`,
    name === undefined ? '' : ` name: /${name}`,
    ` message: /${message}`,
    error === undefined ? '' : ` error: /${messageOf(error)}`,
  ];
  return parts.join('');
}

/** The form of restore results. */
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
