import { setTimeout as sleep } from 'node:timers/promises';
import { whyUnserved } from '../../agent/index.ts';
import { CodedError, type Logger, messageOf } from '../../base/index.ts';
import { environment } from '../../config/index.ts';
import { inPlaceHindrance } from '../../exposer/index.ts';
import type { Backup, DataDownload, DataUpload, KubeClient, KubeObject } from '../../kube/index.ts';
import {
  openActions,
  PinnedPolicies,
  PluginHost,
  pluginsFor,
  podVolumeRestorePlugin,
  policiesOfBackup,
} from '../../plugin/index.ts';
import { type PluginInfo, serverEvents } from '../index.ts';

/** Velero's CLI waits for 5 s. Later answers are missing from the list. Our choice. */
const LIST_MS = 3000;

/** Storages that need no plugin here, with the names of Velero's plugins. */
const STORES: readonly PluginInfo[] = ['aws', 'azure', 'fs', 'gcp'].map((name) => ({
  name: `velero.io/${name}`,
  kind: 'ObjectStore',
}));

export interface ServerPluginsOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly folder: string;
  /** Velero's flag: `EnableCSI`. */
  readonly features: string | undefined;
  /** This server makes backups: Velero's own CSI actions are absent, so ours do all the work. */
  readonly makesBackups: boolean;
  /** The same for restores. */
  readonly makesRestores?: boolean;
  /** Source of the Events that tell what operations are waiting for. */
  readonly host: string;
  /** The server's own flags, which plugins receive. */
  readonly flags: readonly string[];
}

/** The built-in plugins, and those of the folder, which are started once to list actions. */
export class ServerPlugins implements AsyncDisposable {
  readonly #abort = new AbortController();
  readonly #logger: Logger;
  readonly #folder: string;
  readonly #opening: Promise<PluginHost | undefined>;
  readonly #own: readonly PluginInfo[];
  /** Shared with the server, so that both sides of a backup use the same rules. */
  readonly policies = new PinnedPolicies();

  private constructor({
    client,
    logger,
    folder,
    features,
    makesBackups,
    makesRestores = false,
    host,
    flags,
  }: ServerPluginsOptions) {
    this.#logger = logger;
    this.#folder = folder;
    const isCsiOn = features?.split(',').includes('EnableCSI') === true;
    const makesAny = makesBackups || makesRestores;
    const events = serverEvents({ client, logger, host });
    const setting = {
      client,
      logger,
      policiesOf: (backup: Backup) =>
        this.policies.of(backup.metadata.uid, () => policiesOfBackup(client, backup)),
      ...(makesAny && {
        unclaimed: {
          whyUnserved: (movement: DataUpload | DataDownload) =>
            whyUnserved(client, movement.metadata.namespace ?? '', movement),
          warn: (object: KubeObject, message: string) => {
            events.record(object, 'NobodyMovesData', message, 'Warning');
          },
        },
      }),
      ...(makesRestores && {
        inPlaceHindrance: (download: DataDownload, signal: AbortSignal) =>
          inPlaceHindrance(client, download, signal),
      }),
    };
    const load = (own: Logger = logger) =>
      Promise.resolve(openActions({ ...setting, logger: own }));
    const all = [
      ...pluginsFor({ hasCsi: !makesAny && isCsiOn, load }),
      ...(makesRestores ? [podVolumeRestorePlugin(load)] : []),
    ];
    // As in Velero: without the feature no CSI snapshots are taken.
    const builtIn = all.filter(
      ({ name }) => !makesAny || isCsiOn || !name.startsWith('longshore.io/csi-'),
    );
    this.#own = [...STORES, ...builtIn.map(infoOf)];
    const { signal } = this.#abort;
    const options = { folder, builtIn, logger, flags, environment: environment.all, signal };
    this.#opening = PluginHost.open(options).catch((error: unknown) => {
      if (!signal.aborted) logger.error({ folder }, messageOf(error));
      return undefined;
    });
  }

  /** Returns at once, because a plugin may hang. */
  static begin(options: ServerPluginsOptions): ServerPlugins {
    return new ServerPlugins(options);
  }

  /** Resolves when every plugin has listed its actions. Throws `PLUGIN_FOLDER`. */
  async host(): Promise<PluginHost> {
    const host = await this.#opening;
    if (host) return host;
    throw new CodedError('PLUGIN_FOLDER', `the plugins of ${this.#folder} could not be loaded`);
  }

  /** The plugins that answer in time. */
  async list(): Promise<readonly PluginInfo[]> {
    const late = Symbol('late');
    const host = await Promise.race([this.#opening, sleep(LIST_MS, late, { ref: false })]);
    if (host === late) {
      this.#logger.warn(
        {},
        'plugins have not said yet what they offer: they are missing in a list',
      );
    }
    if (host === late || host === undefined) return this.#own;
    // Velero's plugin for a storage may also be present, for its snapshots.
    const isOther = ({ name, kind }: PluginInfo): boolean =>
      !STORES.some((store) => store.name === name && store.kind === kind);
    return [...STORES, ...host.plugins.map(infoOf).filter(isOther)].sort(byKindAndName);
  }

  async close(): Promise<void> {
    this.#abort.abort();
    await (await this.#opening)?.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

const infoOf = ({ name, kind }: PluginInfo): PluginInfo => ({ name, kind });

const byKindAndName = (a: PluginInfo, b: PluginInfo): number => {
  const [one, other] = [`${a.kind} ${a.name}`, `${b.kind} ${b.name}`];
  return one === other ? 0 : one < other ? -1 : 1;
};
