import { availableParallelism } from 'node:os';
import {
  CanceledError,
  type CodedError,
  endProcess,
  type Logger,
  parseBytes,
  type Secret,
  silentLogger,
} from '../base/index.ts';
import { type BlobStorage, parseLocation } from '../blob/index.ts';
import { cgroupMemoryBytes, defaultClient, environment } from '../config/index.ts';
import {
  type Client,
  DEFAULT_MEMORY_BYTES,
  deriveKeyAhead,
  MEMORY_BYTES_MIN,
  openRepository,
  planMemory,
  type Repository,
} from '../repository/index.ts';
import { type Life, watchEnd } from './hung-exit.ts';
import { ExitCode } from './exit.ts';
import type { OutputFlags } from './output/format-options.ts';
import { PasswordPrompt, readPassword } from './password.ts';
import { openRepositoryStorage, type StorageFlags } from './storage-options.ts';
import { createTerminalLogger, printable } from './output/terminal.ts';
import type { TimeFlags } from './output/time-text.ts';
import { UsageError } from './usage-error.ts';
import { createThreadPool } from '../workers/index.ts';

/** Options of every verb. */
export interface CommonOptions extends StorageFlags, OutputFlags, TimeFlags {
  passwordFile?: string;
  passwordCommand?: string;
  client?: string;
  verbose?: boolean;
  logJson?: boolean;
  memoryLimit?: string;
}

/** The rest of a container's memory is for page cache and unforeseen use. */
const CGROUP_SHARE = 0.8;

/** The memory limit: from the flag, else the default, or less in a smaller container. */
function memoryLimitOf({ memoryLimit }: CommonOptions): number {
  if (memoryLimit !== undefined) {
    const bytes = parseBytes(memoryLimit);
    if (bytes !== undefined) return bytes;
    throw new UsageError(`--memory-limit "${memoryLimit}" is not a size such as 256MiB`);
  }
  const container = cgroupMemoryBytes();
  if (container === undefined) return DEFAULT_MEMORY_BYTES;
  return Math.max(MEMORY_BYTES_MIN, Math.min(DEFAULT_MEMORY_BYTES, CGROUP_SHARE * container));
}

export function parseClient(text: string | undefined): Client {
  if (text === undefined) return defaultClient();
  const match = /^([^@:/]+)@([^@:/]+)$/.exec(text);
  const [, username, hostname] = match ?? [];
  if (username && hostname) return { username, hostname };
  throw new UsageError(`--client "${text}" is not of the form user@host`);
}

export async function createLogger(options: CommonOptions): Promise<Logger> {
  const level = options.verbose === true ? 'debug' : (environment.logLevel ?? 'warn');
  if (options.logJson !== true) return createTerminalLogger(level);
  const { createJsonLogger } = await import('../observability/index.ts');
  return createJsonLogger(level);
}

export interface OpenedContext extends AsyncDisposable {
  readonly repository: Repository;
  readonly storage: BlobStorage;
  readonly logger: Logger;
}

interface OpenContextOptions {
  dataPath?: boolean;
  /** False reads everything from the storage itself. `with-data` also keeps file data. */
  cache?: boolean | 'with-data';
  password?: Secret;
  logger?: Logger;
  /**
   * Effect of unreadable index blobs and manifests. `partly`: exit status 3. `tell`: only a
   * warning, for verbs that add to the repository. `ignore`: the verb reports them itself.
   */
  unreadable?: 'partly' | 'tell' | 'ignore';
}

/** Opens `--repo`, with worker threads if `dataPath`. The caller must dispose the result. */
export async function openContext(
  options: CommonOptions,
  { dataPath = false, cache = true, ...given }: OpenContextOptions = {},
): Promise<OpenedContext> {
  const isRemote = parseLocation(options.repo).kind !== 'file';
  const plan = planMemory(memoryLimitOf(options), availableParallelism(), isRemote);
  const { threads, indexMemoryBytes, ...memory } = plan;
  const factory = dataPath ? createThreadPool(threads) : undefined;
  const logger = given.logger ?? (await createLogger(options));
  const client = parseClient(options.client);
  const password = given.password ?? (await askPassword(options));
  const storage = await openRepositoryStorage(options, logger, { cache });
  const { unreadable = 'partly' } = given;
  const tell = (message: string): void => {
    if (given.logger) logger.warn({}, message);
    else if (unreadable !== 'ignore') process.stderr.write(`longshore: ${printable(message)}\n`);
    if (!given.logger && unreadable === 'partly') process.exitCode = ExitCode.partly;
  };
  try {
    const repository = await openRepository({
      storage,
      password,
      client,
      logger,
      indexMemoryBytes,
      ...(factory && { dataPath: { factory, threads, memory } }),
    });
    tellUnreadable(repository.contents.unreadableIndexes, 'index', tell);
    return {
      repository,
      storage,
      logger,
      async [Symbol.asyncDispose]() {
        tellUnreadable(repository.manifests.unreadable, 'list of snapshots', tell);
        await repository.close();
        await storage.close();
      },
    };
  } catch (error) {
    await storage.close();
    throw error;
  }
}

/** Maximum number of unreadable blobs to name. Our choice. */
const UNREADABLE_NAMED_MAX = 10;

function tellUnreadable(
  errors: readonly CodedError[],
  part: 'index' | 'list of snapshots',
  tell: (message: string) => void,
): void {
  if (errors.length === 0) return;
  for (const { message } of errors.slice(0, UNREADABLE_NAMED_MAX)) tell(message);
  const more = errors.length - UNREADABLE_NAMED_MAX;
  const text = `a part of the ${part} cannot be read, so snapshots or files may be missing`;
  const others = more > 0 ? ` (${more} more blobs are unreadable)` : '';
  tell(`${text}${others}. Run "longshore repository repair --dry-run"`);
}

/**
 * The read-only steps of {@link openContext} whose results stay in memory: loads the storage's
 * library and derives the key. Throws the errors of these steps. Does nothing for Azure, because
 * listing account keys uses a rate-limited service.
 */
export async function prepareContext(
  options: CommonOptions,
  { password, signal }: { password: Secret; signal: AbortSignal },
): Promise<void> {
  if (parseLocation(options.repo).kind === 'azblob') return;
  const storage = await openRepositoryStorage(options, silentLogger, { cache: false });
  try {
    await deriveKeyAhead(storage, password, { signal });
  } finally {
    await storage.close();
  }
}

async function askPassword(options: CommonOptions): Promise<Secret> {
  using prompt = new PasswordPrompt();
  return await readPassword(options, prompt);
}

/**
 * Aborts on Ctrl-C and SIGTERM. A second Ctrl-C ends the process at once. With `life`, an end that
 * hangs is cut short. `stopping`: the text on a terminal after the first Ctrl-C.
 */
export function interruptSignal(
  life?: Life,
  stopping = 'stopping',
): {
  signal: AbortSignal;
  dispose: () => void;
} {
  const controller = new AbortController();
  let stopWatching = (): void => undefined;
  const onSignal = (name: NodeJS.Signals): void => {
    if (controller.signal.aborted) endProcess(ExitCode.interrupted);
    if (life) {
      stopWatching = watchEnd(life, (text) => {
        process.stderr.write(`longshore: ${text}\n`);
        endProcess(ExitCode.interrupted);
      });
    }
    controller.abort(new CanceledError(name === 'SIGTERM' ? 'shutdown' : 'user'));
    if (process.stderr.isTTY)
      process.stderr.write(`\n${stopping}; press Ctrl-C again to end at once\n`);
  };
  process.on('SIGINT', onSignal);
  process.on('SIGTERM', onSignal);
  return {
    signal: controller.signal,
    dispose: () => {
      stopWatching();
      process.off('SIGINT', onSignal);
      process.off('SIGTERM', onSignal);
    },
  };
}
