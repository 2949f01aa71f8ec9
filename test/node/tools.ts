import { execFileSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'vitest';
import {
  type DataDownload,
  type DataUpload,
  keyOf,
  type KubeObject,
  type PodVolumeBackup,
  type PodVolumeRestore,
  type Resource,
} from '../../src/kube/index.ts';
import { application, type RealNode } from '../support/real-node.ts';

/** What tells why an object is still there, in a line. */
export function briefly({ kind }: Resource<KubeObject>, object: KubeObject): string {
  const { name, namespace, creationTimestamp, deletionTimestamp, finalizers } = object.metadata;
  const { status = {} } = object as { status?: Readonly<Record<string, unknown>> };
  const { phase, message, failureReason, conditions, readyToUse, error } = status;
  const facts = {
    creationTimestamp,
    deletionTimestamp,
    finalizers,
    phase,
    message,
    failureReason,
    conditions,
    readyToUse,
    error,
  };
  return `${kind} ${namespace === undefined ? '' : `${namespace}/`}${name} ${JSON.stringify(facts)}`;
}

type Movement = DataUpload | DataDownload | PodVolumeBackup | PodVolumeRestore;

export async function runApplication(
  node: RealNode,
  namespace: string,
  claims: Parameters<typeof application>[1],
  options?: Parameters<typeof application>[2],
): Promise<void> {
  await node.applyPatiently(application(namespace, claims, options));
  await waitForPods(node, namespace);
}

/** The phases of Velero's backups and restores that nothing follows on. */
export const FINAL_PHASE = /^(Completed|PartiallyFailed|Failed|FailedValidation)$/;

export const waitForPods = (node: RealNode, namespace: string): Promise<string> =>
  node.kubectl('-n', namespace, 'wait', '--for=condition=Ready', 'pod', '--all', '--timeout=60s');

// What Velero's restore helper leaves where its user may not remove it.
export const listTree = (path: string): string =>
  execFileSync(
    'find',
    ['.', '-mindepth', '1', '-not', '-path', './.velero*', '-printf', '%P %m %U %G %l %T@\n'],
    { cwd: path, encoding: 'utf8' },
  )
    .split('\n')
    .sort()
    .join('\n');

export function assertSame(before: string, after: string): void {
  execFileSync('diff', ['-r', '--no-dereference', '--exclude=.velero', before, after]);
  expect(listTree(after)).toBe(listTree(before));
}

/**
 * Runs a backup by the real Velero, and waits until it is Completed. On a machine with a busy disk,
 * the storage location or the node-agent may be away for a moment. Velero then refuses backups, so
 * wait for both first. An error has Velero's own words.
 */
export async function createBackup(
  node: RealNode,
  name: string,
  flags: readonly string[],
  told: () => Promise<unknown>,
): Promise<void> {
  const velero = ['-n', 'velero'];
  // Not `rollout status`, which refuses a DaemonSet whose pods are replaced by hand.
  const isReady = '--for=jsonpath={.status.numberReady}=1';
  await node.kubectl(...velero, 'wait', isReady, 'ds/node-agent', '--timeout=60s');
  let text = '';
  for (let attempt = 1; attempt <= 3; attempt++) {
    await locationIsAvailable(node);
    text = await node.velero('backup', 'create', name, ...flags, '--wait');
    if (/completed with status: Completed/.test(text)) return;
    // Refused before it began: the location was found away just now, which the next look at it
    // mends. Or Velero's server could not read its credentials, before it had asked for anything.
    const isRefused = /completed with status: FailedValidation/.test(text);
    if ((!isRefused && !(await isWithoutCredentials(node, name))) || attempt === 3) break;
    await node.kubectl(...velero, 'delete', `backup.velero.io/${name}`);
  }
  const says = async (...parameters: string[]): Promise<string> =>
    node.velero('backup', ...parameters).catch(String);
  const logs = await says('logs', name);
  throw new Error(
    [
      `backup ${name}: ${/completed with status: (\w+)/.exec(text)?.[1] ?? text}`,
      `movements: ${JSON.stringify(await told())}`,
      ...logs.split('\n').filter((line) => /level=(error|warning)/.test(line)),
      await node.kubectl(...velero, 'get', `backup.velero.io/${name}`, '-o', 'jsonpath={.status}'),
      await says('describe', name, '--details'),
    ].join('\n'),
  );
}

async function isWithoutCredentials(node: RealNode, name: string): Promise<boolean> {
  const query = ['get', `backup.velero.io/${name}`, '-o', 'jsonpath={.status.failureReason}'];
  const reason = await node.kubectl('-n', 'velero', ...query);
  return /failed to refresh cached credentials/.test(reason);
}

/**
 * Waits until Velero takes backups and restores of all storage locations: it finds them away now
 * and then on a busy machine.
 */
export const locationIsAvailable = (node: RealNode): Promise<string> =>
  node.kubectl(
    ...['-n', 'velero', 'wait', '--for=jsonpath={.status.phase}=Available', 'bsl', '--all'],
    '--timeout=60s',
  );

/** `namespaces`: from where to where. Made once more where Velero refused it before it began. */
export async function restore(
  node: RealNode,
  name: string,
  backup: string,
  namespaces: Readonly<Record<string, string>>,
): Promise<void> {
  const mapping = Object.entries(namespaces).map(([from, to]) => `${from}:${to}`);
  const flags = ['--namespace-mappings', mapping.join(','), '--wait'];
  for (let attempt = 1; ; attempt++) {
    await locationIsAvailable(node);
    const text = await node.velero('restore', 'create', name, '--from-backup', backup, ...flags);
    if (/completed with status: FailedValidation/.test(text) && attempt < 3) {
      await node.kubectl('-n', 'velero', 'delete', `restore.velero.io/${name}`);
      continue;
    }
    const query = ['get', `restore.velero.io/${name}`, '-o', 'jsonpath={.status}'];
    const status = await node.kubectl('-n', 'velero', ...query);
    const isCompleted = text.includes('completed with status: Completed');
    const why = isCompleted ? '' : await whyRestoreFailed(node, name);
    expect(text, `${status}\n${why}`).toMatch(/completed with status: Completed/);
    return;
  }
}

/** The messages of the movements come first, because reports are cut. */
async function whyRestoreFailed(node: RealNode, name: string): Promise<string> {
  const selector = `velero.io/restore-name=${name}`;
  const columns =
    'custom-columns=NAME:.metadata.name,PHASE:.status.phase,NODE:.status.node,START:.status.startTimestamp,END:.status.completionTimestamp,MESSAGE:.status.message';
  const movements = ['get', 'datadownloads,podvolumerestores', '-l', selector, '-o', columns];
  return [
    await node.kubectl('-n', 'velero', ...movements).catch(String),
    await node.velero('restore', 'describe', name, '--details').catch(String),
  ].join('\n');
}

/**
 * Records every version of every object of a kind, as a watcher sees them, until it is stopped. The
 * scope is Velero's namespace, or all namespaces for `''`.
 */
export function record<T extends KubeObject>(
  node: RealNode,
  resource: Resource<T>,
  namespace = 'velero',
): { versions: Map<string, T[]>; stop: () => void } {
  const versions = new Map<string, T[]>();
  const abort = new AbortController();
  void (async () => {
    const events = node.client.watch(resource, {
      ...(namespace !== '' && { namespace }),
      signal: abort.signal,
    });
    for await (const event of events) {
      if (event.type === 'BOOKMARK') continue;
      const key = keyOf(event.object.metadata);
      versions.set(key, [...(versions.get(key) ?? []), event.object]);
    }
  })().catch(() => undefined);
  return {
    versions,
    stop: () => {
      abort.abort();
    },
  };
}

/** Variables of a DaemonSet's pods, as `kubectl set env` takes them. */
export async function setEnvironment(
  node: RealNode,
  daemonSet: string,
  ...variables: string[]
): Promise<void> {
  await node.kubectl('-n', 'velero', 'set', 'env', `ds/${daemonSet}`, ...variables);
  await node.kubectl('-n', 'velero', 'rollout', 'status', `ds/${daemonSet}`, '--timeout=60s');
}

/** The ConfigMap `node-agent-config`. */
export const setConcurrency = (node: RealNode, globalConfig: number): Promise<void> =>
  node.apply(
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name: 'node-agent-config', namespace: 'velero' },
      data: { json: JSON.stringify({ loadConcurrency: { globalConfig } }) },
    }),
  );

export const DEATHS = [0.3, 0.6, 0.9];

/** True where there was one. With its init its program ends as well, at any moment. */
function killAll(node: RealNode, command: RegExp): boolean {
  const killed = node.processesOf(command).filter(({ pid }) => {
    try {
      return process.kill(pid, 'SIGKILL');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
      return false;
    }
  });
  return killed.length > 0;
}

/**
 * Kills the data mover of the only CR with this label, at each of these shares of its moved bytes.
 * The CR's progress counts.
 */
export async function whileKillingMover<T extends Movement, R>(
  node: RealNode,
  resource: Resource<T>,
  {
    labelSelector,
    command,
    bytes,
    shares = DEATHS,
  }: { labelSelector: string; command: RegExp; bytes: number; shares?: readonly number[] },
  work: () => Promise<R>,
): Promise<{ result: R; killedAt: number[]; done: number[] }> {
  const killedAt: number[] = [];
  const done: number[] = [];
  let isOver = false;
  const killing = (async () => {
    for (const share of shares) {
      for (let now = 0; now < share && !isOver;) {
        const [movement] = await node.client.list(resource, { namespace: 'velero', labelSelector });
        now = (movement?.status?.progress?.bytesDone ?? 0) / bytes;
        done.push(now);
        await sleep(50);
      }
      let isKilled = killAll(node, command);
      while (!isKilled && !isOver) {
        await sleep(50);
        isKilled = killAll(node, command);
      }
      if (isKilled) killedAt.push(share);
      await sleep(1500);
    }
  })();
  const result = await work().finally(() => {
    isOver = true;
  });
  await killing;
  return { result, killedAt, done };
}
