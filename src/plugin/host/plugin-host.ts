import { CodedError, type Logger } from '../../base/index.ts';
import type {
  BackupItemAction,
  DeleteItemAction,
  ItemBlockAction,
  ObjectStore,
  Plugin,
  RestoreItemAction,
  VolumeSnapshotter,
} from '../contract.ts';
import { withoutOperations } from '../operation-errors.ts';
import { Operations } from './operations.ts';
import {
  type HostedKind,
  PluginRegistry,
  type PluginProblem,
  type RegisteredPlugin,
  type RegistryOptions,
} from './registry.ts';
import {
  type HostedAction,
  type Remote,
  remoteBackupAction,
  remoteBlockAction,
  remoteDeleteAction,
  remoteObjectStore,
  remoteRestoreAction,
  remoteSnapshotter,
} from './remote-plugin.ts';
import { RestartableProcess } from './restartable-process.ts';

export interface HostOptions extends RegistryOptions {
  /**
   * Time limit of a call without a shorter deadline in its signal. Default: 4 h, like Velero's
   * limit for an operation. Velero has no limit here, and a hanging plugin blocks a backup forever.
   */
  readonly callMsMax?: number;
  /** How long an object's stream may stall because of the plugin. Default: 10 min, our choice. */
  readonly streamMsMax?: number;
  /** How long a process is kept for its operations without polls. */
  readonly keptMsMax?: number;
}

const CALL_MS_MAX = 4 * 3_600_000;
const STREAM_MS_MAX = 10 * 60_000;

/**
 * The plugins of a folder, for the lifetime of a server. Each backup, restore and reconcile opens
 * its own manager, as in Velero.
 */
export class PluginHost implements AsyncDisposable {
  readonly #options: HostOptions;
  readonly #registry: PluginRegistry;
  readonly #operations: Operations;
  readonly #managers = new Set<PluginManager>();

  private constructor(options: HostOptions, registry: PluginRegistry) {
    this.#options = options;
    this.#registry = registry;
    this.#operations = new Operations(options.logger, options.keptMsMax);
  }

  /** Starts every plugin of the folder once and lists its actions. Throws only `PLUGIN_FOLDER`. */
  static async open(options: HostOptions): Promise<PluginHost> {
    return new PluginHost(options, await PluginRegistry.load(options));
  }

  get plugins(): readonly RegisteredPlugin[] {
    return this.#registry.plugins;
  }

  /** Files, and plugins in files, that could not be loaded. */
  get problems(): readonly PluginProblem[] {
    return this.#registry.problems;
  }

  /** `logger` gets the plugins' lines. For a backup, its log counts the errors. */
  manager(logger: Logger): PluginManager {
    const manager = new PluginManager({
      options: this.#options,
      plugins: this.plugins,
      operations: this.#operations,
      logger,
      onClose: () => this.#managers.delete(manager),
    });
    this.#managers.add(manager);
    return manager;
  }

  /**
   * Ends every process. If the server is killed instead, its plugins stay: ours end within seconds,
   * and Go programs run until their container ends.
   */
  async close(): Promise<void> {
    await Promise.all([...this.#managers].map((manager) => manager.end()));
    await this.#operations.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

interface ManagerOptions {
  readonly options: HostOptions;
  readonly plugins: readonly RegisteredPlugin[];
  readonly operations: Operations;
  readonly logger: Logger;
  readonly onClose: () => void;
}

/** Kinds to search, in order: an action of version 1 is used like one of version 2. */
const BACKUP_KINDS = ['BackupItemActionV2', 'BackupItemAction'] as const;
const RESTORE_KINDS = ['RestoreItemActionV2', 'RestoreItemAction'] as const;

/** The plugin calls of one backup or restore: one process per file, started by the first call. */
export class PluginManager implements AsyncDisposable {
  readonly #options: ManagerOptions;
  readonly #opened = new Map<Plugin, () => Promise<unknown>>();
  readonly #processes = new Map<string, RestartableProcess>();
  readonly #counts = { errors: 0, warnings: 0 };
  readonly #logger: Logger;
  #isClosed = false;

  constructor(options: ManagerOptions) {
    this.#options = options;
    this.#logger = counting(options.logger, this.#counts);
  }

  /** Errors and warnings that its plugins have logged so far. They count for the backup. */
  get logged(): Readonly<{ errors: number; warnings: number }> {
    return { ...this.#counts };
  }

  /** In order of execution. Includes version 1; a name in both versions appears once. */
  backupItemActions(): HostedAction<Required<BackupItemAction>>[] {
    return this.#all(BACKUP_KINDS).map((plugin) => this.#backupAction(plugin));
  }

  restoreItemActions(): HostedAction<Required<RestoreItemAction>>[] {
    return this.#all(RESTORE_KINDS).map((plugin) => this.#restoreAction(plugin));
  }

  deleteItemActions(): HostedAction<DeleteItemAction>[] {
    return this.#all(['DeleteItemAction']).map((plugin) => this.#deleteAction(plugin));
  }

  itemBlockActions(): HostedAction<ItemBlockAction>[] {
    return this.#all(['ItemBlockAction']).map((plugin) => this.#blockAction(plugin));
  }

  /** Throws `NO_SUCH_PLUGIN`. A name without a slash gets the prefix `velero.io/`. */
  backupItemAction(name: string): HostedAction<Required<BackupItemAction>> {
    return this.#backupAction(this.#find(BACKUP_KINDS, name));
  }

  restoreItemAction(name: string): HostedAction<Required<RestoreItemAction>> {
    return this.#restoreAction(this.#find(RESTORE_KINDS, name));
  }

  deleteItemAction(name: string): HostedAction<DeleteItemAction> {
    return this.#deleteAction(this.#find(['DeleteItemAction'], name));
  }

  itemBlockAction(name: string): HostedAction<ItemBlockAction> {
    return this.#blockAction(this.#find(['ItemBlockAction'], name));
  }

  /**
   * `provider`: the name, such as `aws`. Each configuration has its own process: a plugin has only
   * one object store per name. A second configuration would redirect the backups of the first
   * location.
   */
  objectStore(provider: string, config: Readonly<Record<string, string>>): ObjectStore {
    const plugin = this.#find(['ObjectStore'], provider);
    return remoteObjectStore(this.#remote(plugin, config), config);
  }

  volumeSnapshotter(provider: string, config: Readonly<Record<string, string>>): VolumeSnapshotter {
    const plugin = this.#find(['VolumeSnapshotter'], provider);
    return remoteSnapshotter(this.#remote(plugin, config), config);
  }

  /** Ends its processes, except those with unfinished operations. Open calls fail. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#options.onClose();
    const processes = [...this.#processes.values()];
    this.#processes.clear();
    const { operations } = this.#options;
    const ended = processes.filter((process) => !operations.keep(process));
    await Promise.all(ended.map((process) => process.stop()));
  }

  async end(): Promise<void> {
    this.#isClosed = true;
    this.#options.onClose();
    await Promise.all([...this.#processes.values()].map((process) => process.stop()));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #all(kinds: readonly HostedKind[]): RegisteredPlugin[] {
    const all = this.#options.plugins.filter(({ kind }) => kinds.includes(kind));
    const [newest] = kinds;
    const isNewest = ({ kind }: RegisteredPlugin): boolean => kind === newest;
    const newestNames = new Set(all.filter(isNewest).map(({ name }) => name));
    return all.filter((plugin) => isNewest(plugin) || !newestNames.has(plugin.name));
  }

  #find(kinds: readonly HostedKind[], given: string): RegisteredPlugin {
    const name = given.includes('/') ? given : `velero.io/${given}`;
    for (const kind of kinds) {
      const found = this.#options.plugins.find((p) => p.kind === kind && p.name === name);
      if (found) return found;
    }
    const text = `there is no ${kinds[0]} plugin ${name}: is its file in the plugin folder, and did it load?`;
    throw new CodedError('NO_SUCH_PLUGIN', text, { facts: { kind: kinds[0] ?? '', name } });
  }

  #backupAction(plugin: RegisteredPlugin): HostedAction<Required<BackupItemAction>> {
    const { builtIn } = plugin;
    if (builtIn?.kind !== 'BackupItemActionV2') return remoteBackupAction(this.#remote(plugin));
    const action = this.#openedOnce(builtIn, builtIn.open);
    return local(builtIn, {
      execute: async (item, backup, context) => (await action()).execute(item, backup, context),
      progress: async (id, backup, context) => {
        const progress = (await action()).progress?.(id, backup, context);
        if (!progress) throw withoutOperations();
        return progress;
      },
      cancel: async (id, backup, context) => (await action()).cancel?.(id, backup, context),
    });
  }

  #restoreAction(plugin: RegisteredPlugin): HostedAction<Required<RestoreItemAction>> {
    const { builtIn } = plugin;
    if (builtIn?.kind !== 'RestoreItemActionV2') return remoteRestoreAction(this.#remote(plugin));
    const action = this.#openedOnce(builtIn, builtIn.open);
    return local(builtIn, {
      execute: async (input, context) => (await action()).execute(input, context),
      progress: async (id, restore, context) => {
        const progress = (await action()).progress?.(id, restore, context);
        if (!progress) throw withoutOperations();
        return progress;
      },
      cancel: async (id, restore, context) => (await action()).cancel?.(id, restore, context),
      areAdditionalItemsReady: async (items, restore, context) =>
        (await (await action()).areAdditionalItemsReady?.(items, restore, context)) ?? true,
    });
  }

  #deleteAction(plugin: RegisteredPlugin): HostedAction<DeleteItemAction> {
    const { builtIn } = plugin;
    if (builtIn?.kind !== 'DeleteItemAction') return remoteDeleteAction(this.#remote(plugin));
    const action = this.#openedOnce(builtIn, builtIn.open);
    return local(builtIn, {
      execute: async (item, backup, context) => (await action()).execute(item, backup, context),
    });
  }

  #blockAction(plugin: RegisteredPlugin): HostedAction<ItemBlockAction> {
    const { builtIn } = plugin;
    if (builtIn?.kind !== 'ItemBlockAction') return remoteBlockAction(this.#remote(plugin));
    const action = this.#openedOnce(builtIn, builtIn.open);
    return local(builtIn, {
      relatedItems: async (item, backup, context) =>
        (await action()).relatedItems(item, backup, context),
    });
  }

  /** Opens a built-in action once, like a plugin's process: its memory helps later calls. */
  #openedOnce<Action>(
    plugin: Plugin,
    open: (logger?: Logger) => Promise<Action>,
  ): () => Promise<Action> {
    const before = this.#opened.get(plugin) as (() => Promise<Action>) | undefined;
    const action = before ?? opened(() => open(this.#logger));
    this.#opened.set(plugin, action);
    return action;
  }

  #remote(plugin: RegisteredPlugin, config?: Readonly<Record<string, string>>): Remote {
    const { command = '', kind, name } = plugin;
    const { options, operations } = this.#options;
    const key = config ? `${command} ${kind} ${name} ${JSON.stringify(config)}` : command;
    const owner = (): RestartableProcess => this.#process(command, key);
    return {
      command,
      kind,
      name,
      ready: async (operationId) => {
        const began =
          operationId === undefined ? undefined : operations.processOf(plugin, operationId);
        return began ?? owner().ready();
      },
      begun: (operationId, process) => operations.begun(plugin, operationId, owner(), process),
      over: (operationId) => operations.over(plugin, operationId),
      callMsMax: options.callMsMax ?? CALL_MS_MAX,
      streamMsMax: options.streamMsMax ?? STREAM_MS_MAX,
    };
  }

  #process(command: string, key: string): RestartableProcess {
    let process = this.#processes.get(key);
    if (!process) {
      // A new process would never be stopped, because this manager is already closed.
      if (this.#isClosed) {
        throw new CodedError(
          'PLUGINS_CLOSED',
          `plugin ${command} was asked after the end of its backup or restore`,
        );
      }
      const { flags, environment, startMsMax } = this.#options.options;
      const start = {
        command,
        flags,
        environment,
        ...(startMsMax !== undefined && { startMsMax }),
      };
      process = new RestartableProcess(start, this.#logger);
      this.#processes.set(key, process);
    }
    return process;
  }
}

const local = <Action>(
  { kind, name, appliesTo }: Plugin,
  action: Action,
): HostedAction<Action> => ({
  kind,
  name,
  action,
  appliesTo: () => Promise.resolve(appliesTo),
});

/** Opened by the first call, and again after a failure. */
function opened<Action>(open: () => Promise<Action>): () => Promise<Action> {
  let action: Promise<Action> | undefined;
  return () => {
    if (!action) {
      action = open();
      action.catch(() => (action = undefined));
    }
    return action;
  };
}

function counting(logger: Logger, counts: { errors: number; warnings: number }): Logger {
  return {
    debug: (fields, message) => logger.debug(fields, message),
    info: (fields, message) => logger.info(fields, message),
    warn: (fields, message) => {
      counts.warnings++;
      logger.warn(fields, message);
    },
    error: (fields, message) => {
      counts.errors++;
      logger.error(fields, message);
    },
  };
}
