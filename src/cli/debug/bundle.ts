import type { NewTarEntry } from '../../archive/index.ts';
import { isCode, mapLimited, messageOf, unixSeconds } from '../../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DAEMON_SETS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  DELETE_BACKUP_REQUESTS,
  DEPLOYMENTS,
  EVENTS,
  JOBS,
  type KubeClient,
  type KubeObject,
  LEASES,
  NODES,
  type Pod,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  PVCS,
  type Resource,
  RESTORES,
  SERVER_STATUS_REQUESTS,
  STORAGE_CLASSES,
  VELERO_GROUP,
  VOLUME_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOT_LOCATIONS,
} from '../../kube/index.ts';
import { isPasswordWellKnown, WELL_KNOWN_REMEDY } from '../../server/index.ts';
import { objectWithoutSecrets, textWithoutSecrets } from './without-secrets.ts';

export interface BundleOptions {
  readonly client: KubeClient;
  /** Velero's namespace. */
  readonly namespace: string;
  readonly version: string;
  readonly signal: AbortSignal;
  /**
   * Called at most once for each problem: missing parts of the bundle, or faults in the cluster.
   */
  readonly onProblem: (text: string) => void;
  readonly limits?: Partial<typeof LIMITS>;
}

/** Our choices: a bundle fits into an e-mail. Data over a limit is reported as a problem. */
const LIMITS = {
  /** For one kind of objects, in bytes of JSON. */
  listBytes: 32 << 20,
  /** For one log: the last bytes are kept. */
  logBytes: 1 << 20,
  /** For the logs of all pods together. */
  allLogsBytes: 256 << 20,
  /** Time limit for an answer of the API server or a node. */
  answerMs: 30_000,
};
const LOGS_AT_ONCE = 8;
/** Our log lines have more than 64 bytes. */
const LINE_BYTES = 64;
const PAGE = 200;

/** Without Secrets, and without DownloadRequests, because their URLs are signed. */
const KINDS: readonly Resource<KubeObject>[] = [
  ...[BACKUPS, RESTORES, DELETE_BACKUP_REQUESTS, DATA_UPLOADS, DATA_DOWNLOADS],
  ...[POD_VOLUME_BACKUPS, POD_VOLUME_RESTORES, BACKUP_REPOSITORIES, BACKUP_STORAGE_LOCATIONS],
  ...[VOLUME_SNAPSHOT_LOCATIONS, SERVER_STATUS_REQUESTS],
  {
    group: VELERO_GROUP,
    version: 'v1',
    kind: 'Schedule',
    plural: 'schedules',
    namespaced: true,
  },
  ...[DAEMON_SETS, DEPLOYMENTS, JOBS, PODS, PVCS, CONFIG_MAPS, LEASES, EVENTS],
  ...[NODES, STORAGE_CLASSES, VOLUME_SNAPSHOT_CLASSES, VOLUME_SNAPSHOT_CONTENTS],
];

/**
 * The data that a maintainer needs about a cluster, one file at a time. Includes objects of
 * Velero's namespace, logs of its pods, and versions. Unreadable parts are reported as problems,
 * and the rest follows. Throws only the signal's reason.
 */
export async function* bundleOf(options: BundleOptions): AsyncGenerator<NewTarEntry> {
  const { client, signal, namespace } = options;
  const limits = { ...LIMITS, ...options.limits };
  const mtime = unixSeconds(client.clock.nowNs());
  const entry = (path: string, text: string): NewTarEntry => {
    return { path: `bundle/${path}`, bytes: Buffer.from(text), mtime, mode: 0o644 };
  };
  const within = (): AbortSignal => AbortSignal.any([signal, AbortSignal.timeout(limits.answerMs)]);
  const attempt = async <T>(what: string, task: () => Promise<T>): Promise<T | undefined> => {
    try {
      return await task();
    } catch (error) {
      signal.throwIfAborted();
      options.onProblem(`${what}: ${textWithoutSecrets(messageOf(error))}`);
      return undefined;
    }
  };

  const served = await attempt('version of the API server', () =>
    client.raw({ method: 'GET', path: '/version', signal: within() }),
  );
  const versions = { longshore: options.version, node: process.version, namespace, server: served };
  yield entry('versions.json', `${JSON.stringify(versions, undefined, 2)}\n`);

  const isWellKnown = await attempt('the Secret of the repository password', () =>
    isPasswordWellKnown(client, namespace, within()),
  );
  if (isWellKnown === true) {
    const text = "the repository password is Velero's default, which everybody knows";
    yield entry('password.txt', `${text}. ${WELL_KNOWN_REMEDY}\n`);
    options.onProblem(`${text}. ${WELL_KNOWN_REMEDY}`);
  }

  for (const kind of KINDS) {
    const text = await attempt(kind.plural, () => listText(kind, options, limits, within));
    if (text !== undefined) {
      yield entry(`objects/${kind.plural}${kind.group && `.${kind.group}`}.json`, text);
    }
  }

  let bytesLeft = limits.allLogsBytes;
  let isFull = false;
  const pods = (await attempt('pods, for their logs', () => podsOf(options, within))) ?? [];
  for (let at = 0; at < pods.length && !isFull; at += LOGS_AT_ONCE) {
    const logs = await mapLimited(pods.slice(at, at + LOGS_AT_ONCE), LOGS_AT_ONCE, (pod) =>
      logsOf(pod, client, { limits, within, attempt }),
    );
    for (const { path, text } of logs.flat()) {
      bytesLeft -= text.length;
      isFull = bytesLeft < 0;
      if (isFull) break;
      yield entry(path, text);
    }
  }
  if (isFull) options.onProblem('logs: there are more than fit; the rest is left out');
}

/**
 * An array with one object per line. A kind that the cluster lacks has no file, and is no problem.
 */
async function listText(
  kind: Resource<KubeObject>,
  { client, namespace, onProblem }: BundleOptions,
  limits: typeof LIMITS,
  within: () => AbortSignal,
): Promise<string | undefined> {
  const lines: string[] = [];
  let bytes = 0;
  let left = 0;
  let next: string | undefined;
  do {
    try {
      const page = await client.listPage(kind, {
        ...(kind.namespaced && { namespace }),
        limit: PAGE,
        continue: next,
        signal: within(),
      });
      for (const item of page.items) {
        const line = JSON.stringify(objectWithoutSecrets(item));
        if (bytes + line.length > limits.listBytes) left++;
        else lines.push(line);
        bytes += line.length;
      }
      next = page.continue;
    } catch (error) {
      if (lines.length === 0 && isCode(error, 'KUBE_NOT_FOUND')) return undefined;
      if (lines.length === 0) throw error;
      onProblem(`${kind.plural}: only the first ${lines.length}, ${messageOf(error)}`);
      next = undefined;
    }
  } while (next !== undefined && bytes <= limits.listBytes);
  if (left > 0 || next !== undefined) {
    onProblem(`${kind.plural}: only the first ${lines.length}, the others do not fit`);
  }
  return `[\n${lines.join(',\n')}\n]\n`;
}

interface PodToRead {
  readonly ref: { readonly namespace: string | undefined; readonly name: string };
  readonly containers: readonly { readonly name: string; readonly hasPrevious: boolean }[];
}

async function podsOf(
  { client, namespace }: BundleOptions,
  within: () => AbortSignal,
): Promise<PodToRead[]> {
  return await client.collect<Pod, PodToRead>(
    PODS,
    { namespace, signal: within() },
    ({ metadata, spec, status }) => {
      const statuses = [
        ...(status?.initContainerStatuses ?? []),
        ...(status?.containerStatuses ?? []),
      ];
      const restarts = new Map(statuses.map((each) => [each.name, each.restartCount ?? 0]));
      const containers = [...(spec.initContainers ?? []), ...spec.containers];
      const ref = { namespace: metadata.namespace, name: metadata.name };
      return [
        {
          ref,
          containers: containers
            // A container that has not started has no log.
            .filter(({ name }) => restarts.has(name))
            .map(({ name }) => ({ name, hasPrevious: (restarts.get(name) ?? 0) > 0 })),
        },
      ];
    },
  );
}

async function logsOf(
  { ref, containers }: PodToRead,
  client: KubeClient,
  how: {
    readonly limits: typeof LIMITS;
    readonly within: () => AbortSignal;
    readonly attempt: <T>(what: string, task: () => Promise<T>) => Promise<T | undefined>;
  },
): Promise<{ path: string; text: string }[]> {
  const found: { path: string; text: string }[] = [];
  const tail = { tailLines: how.limits.logBytes / LINE_BYTES, bytesMax: how.limits.logBytes };
  for (const { name, hasPrevious } of containers) {
    for (const previous of hasPrevious ? [true, false] : [false]) {
      const which = previous ? `${name}.previous` : name;
      const text = await how.attempt(`log of ${ref.name}/${which}`, () =>
        client.podLog(ref, name, { ...tail, previous, signal: how.within() }),
      );
      if (!text) continue;
      found.push({ path: `logs/${ref.name}/${which}.log`, text: textWithoutSecrets(text) });
    }
  }
  return found;
}
