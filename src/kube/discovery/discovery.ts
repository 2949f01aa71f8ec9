import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCanceled, type Logger, messageOf, silentLogger } from '../../base/index.ts';
import type { CallOptions, KubeClient } from '../client/client.ts';
import { ResourceNames } from './names.ts';
import {
  type DiscoveryFailure,
  loadServed,
  type Served,
  type ServedResource,
  type ServedVersion,
} from './served.ts';

export interface DiscoveryOptions {
  /** Velero's feature `EnableAPIGroupVersions`: all versions, not only the preferred one. */
  readonly hasAllVersions?: boolean;
  readonly logger?: Logger;
}

/** The answer of `/version`. */
export interface ServerVersion {
  readonly major: string;
  readonly minor: string;
  readonly gitVersion: string;
}

/** Verbs that backup and restore need. Velero: pkg/discovery/helper.go, filterByVerbs. */
const NEEDED_VERBS = ['list', 'create', 'get', 'delete'];

interface Snapshot {
  readonly lists: readonly ServedVersion[];
  readonly failures: readonly DiscoveryFailure[];
  readonly names: ResourceNames;
  readonly serverVersion: ServerVersion;
}

/**
 * The resources of an API server that can be backed up. They change only in {@link
 * Discovery.refresh}. Versions and their order follow Velero (pkg/discovery/helper.go), but
 * resources of a group keep the order of the server.
 */
export class Discovery {
  readonly #client: Pick<KubeClient, 'raw'>;
  readonly #hasAllVersions: boolean;
  readonly #logger: Logger;
  #now: Snapshot;
  #refreshing: Promise<void> | undefined;

  private constructor(client: Pick<KubeClient, 'raw'>, options: DiscoveryOptions, now: Snapshot) {
    this.#client = client;
    this.#hasAllVersions = options.hasAllVersions ?? false;
    this.#logger = options.logger ?? silentLogger;
    this.#now = now;
  }

  /** Loads everything once. Throws the `KUBE_*` errors if the API server does not answer. */
  static async open(
    client: Pick<KubeClient, 'raw'>,
    options: DiscoveryOptions & CallOptions = {},
  ): Promise<Discovery> {
    const { hasAllVersions = false, logger = silentLogger } = options;
    const now = await load(client, hasAllVersions, options);
    warnOf(now.failures, logger);
    return new Discovery(client, options, now);
  }

  /** Groups with their resources that can be backed up: the core group first, `extensions` last. */
  get lists(): readonly ServedVersion[] {
    return this.#now.lists;
  }

  /** Groups whose servers did not answer. Their resources are in no list. */
  get failures(): readonly DiscoveryFailure[] {
    return this.#now.failures;
  }

  get serverVersion(): ServerVersion {
    return this.#now.serverVersion;
  }

  /**
   * Finds a resource by plural, singular, kind or short name. The name may end in the group or a
   * prefix of it, such as `deployments.apps`. Returns the preferred version. Undefined if no such
   * resource can be backed up.
   */
  find(name: string): ServedResource | undefined {
    return this.#now.names.find(name);
  }

  /** Like {@link find}, by the parts of an identifier. */
  findIn(group: string, resource: string): ServedResource | undefined {
    return this.#now.names.findIn(group, resource);
  }

  /**
   * Loads everything again. Concurrent calls share one load, and the first caller's signal ends it
   * for all. After a failure the earlier state stays. Throws the `KUBE_*` errors.
   */
  refresh(options: CallOptions = {}): Promise<void> {
    this.#refreshing ??= load(this.#client, this.#hasAllVersions, options)
      .then((now) => {
        const known = new Set(this.#now.failures.map(({ groupVersion }) => groupVersion));
        warnOf(
          now.failures.filter(({ groupVersion }) => !known.has(groupVersion)),
          this.#logger,
        );
        this.#now = now;
      })
      .finally(() => (this.#refreshing = undefined));
    return this.#refreshing;
  }

  /** Refreshes at an interval until the signal aborts. Logs failures. */
  async keepFresh(intervalMs: number, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await sleep(intervalMs, undefined, { signal });
        await this.refresh({ signal });
      } catch (error) {
        if (isCanceled(error) || signal.aborted) return;
        this.#logger.warn(
          { reason: messageOf(error) },
          'cannot ask the API server for its resources',
        );
      }
    }
  }
}

const warnOf = (failures: readonly DiscoveryFailure[], logger: Logger): void => {
  for (const { groupVersion, reason } of failures)
    logger.warn({ groupVersion, reason }, 'cannot discover the resources of a group');
};

async function load(
  client: Pick<KubeClient, 'raw'>,
  hasAllVersions: boolean,
  options: CallOptions,
): Promise<Snapshot> {
  const { signal } = options;
  const served = await loadServed(client, { signal });
  const said = (await client.raw({ method: 'GET', path: '/version', signal })) as Partial<
    Record<keyof ServerVersion, unknown>
  >;
  const lists = listsOf(served, hasAllVersions);
  if (lists.length === 0) {
    const text = 'the API server says that it serves nothing that can be backed up';
    throw new CodedError('NOTHING_SERVED', text, { retry: 'backoff' });
  }
  return {
    lists,
    failures: served.failures,
    names: new ResourceNames(served, lists),
    serverVersion: {
      major: textOf(said.major),
      minor: textOf(said.minor),
      gitVersion: textOf(said.gitVersion),
    },
  };
}

const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');

/**
 * Chooses a version of each resource: the preferred version of its group, or the first if that
 * lacks the resource. Source: client-go, discovery/discovery_client.go, ServerPreferredResources.
 */
function listsOf({ groups }: Served, hasAllVersions: boolean): ServedVersion[] {
  const lists = groups.flatMap(({ preferredVersion, versions }) => {
    const chosen = new Map<string, string>();
    for (const { version, resources } of versions) {
      for (const { plural } of resources) {
        if (!chosen.has(plural) || version === preferredVersion) chosen.set(plural, version);
      }
    }
    return versions.map(({ group, version, resources }) => ({
      group,
      version,
      resources: resources.filter(
        ({ plural, verbs }) =>
          (hasAllVersions || chosen.get(plural) === version) &&
          NEEDED_VERBS.every((verb) => verbs.includes(verb)),
      ),
    }));
  });
  const filled = lists.filter(({ resources }) => resources.length > 0);
  const isLast = ({ group }: ServedVersion): boolean => group === 'extensions';
  return [...filled.filter((list) => !isLast(list)), ...filled.filter(isLast)];
}
