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
  /**
   * Velero's feature `EnableAPIGroupVersions`: every version of a resource, not only the preferred
   * one.
   */
  readonly hasAllVersions?: boolean;
  readonly logger?: Logger;
}

/** What `/version` says. */
export interface ServerVersion {
  readonly major: string;
  readonly minor: string;
  readonly gitVersion: string;
}

/**
 * Without one of these verbs nothing can be backed up and restored. Velero:
 * pkg/discovery/helper.go, filterByVerbs.
 */
const NEEDED_VERBS = ['list', 'create', 'get', 'delete'];

interface Snapshot {
  readonly lists: readonly ServedVersion[];
  readonly failures: readonly DiscoveryFailure[];
  readonly names: ResourceNames;
  readonly serverVersion: ServerVersion;
}

/**
 * What an API server serves, as far as it can be backed up, kept from one {@link Discovery.refresh}
 * to the next. Which versions are taken and in which order is Velero's rule
 * (pkg/discovery/helper.go), except that resources of a group keep the order of the server.
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

  /** Asks for everything once. Throws the `KUBE_*` errors when the API server does not answer. */
  static async open(
    client: Pick<KubeClient, 'raw'>,
    options: DiscoveryOptions & CallOptions = {},
  ): Promise<Discovery> {
    const { hasAllVersions = false, logger = silentLogger } = options;
    const now = await load(client, hasAllVersions, options);
    warnOf(now.failures, logger);
    return new Discovery(client, options, now);
  }

  /** Groups with what can be backed up of them: the core group first, `extensions` last. */
  get lists(): readonly ServedVersion[] {
    return this.#now.lists;
  }

  /** Groups whose own servers did not answer; what they serve is in no list. */
  get failures(): readonly DiscoveryFailure[] {
    return this.#now.failures;
  }

  get serverVersion(): ServerVersion {
    return this.#now.serverVersion;
  }

  /**
   * The resource that a user means: by plural, singular, kind or short name, with or without (the
   * beginning of) its group, as `deployments.apps`. Its version is the preferred one. Undefined
   * where there is none that can be backed up.
   */
  find(name: string): ServedResource | undefined {
    return this.#now.names.find(name);
  }

  /** As {@link find}, by the parts of an identifier. */
  findIn(group: string, resource: string): ServedResource | undefined {
    return this.#now.names.findIn(group, resource);
  }

  /**
   * Asks again. Calls at the same time are one; when it fails the earlier state stays. Throws the
   * `KUBE_*` errors. The signal of the first of several callers ends it for all.
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

  /**
   * Refreshes every so often until the signal ends it. A failure is logged, and the next turn tries
   * again.
   */
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
 * One version of each resource: the preferred one of its group where that has it, else the first
 * that has. client-go: discovery/discovery_client.go, ServerPreferredResources.
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
