import { existsSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { IN_PROCESS } from '../../dev/index.ts';
import { type KubeClient, NAMESPACES, PODS } from '../../kube/index.ts';
import { createServerLogger } from '../../observability/index.ts';
import { interruptSignal } from '../context.ts';
import { DEV_NAMESPACE, DevEnvironment } from './dev-environment.ts';
import { serverFlags } from '../server/verb.ts';
import { runServer } from '../server/run-server.ts';
import { printLine } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';

export interface UpFlags {
  directory?: string;
  nodes: string;
  port?: string;
  logLevel: string;
  server: boolean;
}

const ANY_PORT = '127.0.0.1:0';
const OPERATIONS_EVERY = '1s';
const STOP = 'Press Ctrl-C to stop.';

/** The root of the package. The sources are two folders below it, the bundle one. */
const ROOT = findRoot(new URL('.', import.meta.url).pathname);
const NODES_MAX = 16;
const PORT_MAX = 65_535;

/** `longshore dev up`: runs a cluster and the server in this process until Ctrl-C. */
export async function runCluster(flags: UpFlags): Promise<void> {
  const count = Number(flags.nodes);
  if (!Number.isInteger(count) || count < 1 || count > NODES_MAX) {
    throw new UsageError(`--nodes "${flags.nodes}" is not a number from 1 to ${NODES_MAX}`);
  }
  const port = flags.port === undefined ? undefined : Number(flags.port);
  if (port !== undefined && !(Number.isInteger(port) && port >= 0 && port <= PORT_MAX)) {
    throw new UsageError(`--port "${flags.port ?? ''}" is not a port number`);
  }
  const directory = flags.directory
    ? resolve(flags.directory)
    : await fs.mkdtemp(join(tmpdir(), 'longshore-dev-'));
  const nodes = Array.from({ length: count }, (_, i) => `node-${i + 1}`);
  const interrupt = interruptSignal();
  try {
    await using environment = await DevEnvironment.start({
      directory,
      nodes,
      port,
      // The movers use the same launcher as this process.
      command: [join(ROOT, 'bin/longshore')],
      environment: { HOME: join(directory, 'home'), PATH: '/usr/bin:/bin' },
      logger: createServerLogger(flags.logLevel, 'text'),
      isKept: true,
    });
    for (const node of nodes) {
      environment.startAgent(node);
      await showAgent(environment.client, node);
    }
    for (const name of ['default', 'app', 'app-restored']) {
      if (await environment.client.find(NAMESPACES, { name })) continue;
      await environment.client.create(NAMESPACES, { metadata: { name } });
    }
    tellCluster(nodes, directory, environment.kubeconfig);
    if (!flags.server) {
      printCommands('Make a volume:', volumeCommands());
      tellByHand(directory);
      printLine(STOP);
      await aborted(interrupt.signal);
      return;
    }
    await runServer(
      serverFlags([
        ...['--kubeconfig', environment.kubeconfig, '--namespace', DEV_NAMESPACE],
        // The cluster prepares repositories itself, and cannot run Jobs.
        ...['--disable-controllers', 'backup-repo', '--features', 'EnableCSI'],
        ...['--plugin-dir', join(directory, 'plugins'), '--log-level', logsOfRuns(flags)],
        ...['--item-operation-sync-frequency', OPERATIONS_EVERY],
        ...[
          '--metrics-address',
          ANY_PORT,
          '--status-page-address',
          ANY_PORT,
          '--status-page-files',
        ],
      ]),
      {
        signal: interrupt.signal,
        pluginFlags: [],
        logLevel: flags.logLevel,
        onServing: (page) => {
          printCommands(
            'Make a volume, back it up, look into the backup, and restore it into another namespace:',
            [...volumeCommands(), ...SERVER_COMMANDS],
          );
          printLine(`The page of the server shows them: http://${page ?? ''}/`);
          tellByHand(directory);
          printLine(STOP);
        },
      },
    );
  } finally {
    interrupt.dispose();
  }
}

/**
 * The agents run in this process. Their pods make them visible, for example to `node-agent status`.
 */
async function showAgent(client: KubeClient, node: string): Promise<void> {
  const metadata = { name: `node-agent-${node}`, namespace: DEV_NAMESPACE };
  if (await client.find(PODS, metadata)) return;
  const labels = { name: 'node-agent', role: 'node-agent' };
  await client.create(PODS, {
    metadata: { ...metadata, labels, annotations: { [IN_PROCESS]: 'true' } },
    spec: { nodeName: node, containers: [{ name: 'node-agent', image: 'longshore' }] },
  });
  const container = { name: 'node-agent', image: 'longshore', imageID: '', restartCount: 0 };
  const status = {
    phase: 'Running' as const,
    conditions: [{ type: 'Ready', status: 'True' }],
    containerStatuses: [
      { ...container, ready: true, state: { running: { startedAt: new Date().toISOString() } } },
    ],
  };
  await client.patch(PODS, metadata, { status }, { subresource: 'status' });
}

/** Backups and restores always get logs, even if the cluster prints little. */
const logsOfRuns = ({ logLevel }: UpFlags): string => (logLevel === 'debug' ? logLevel : 'info');

const EXAMPLES = join(ROOT, 'docs/examples');

function tellCluster(nodes: readonly string[], directory: string, kubeconfig: string): void {
  printLine(`A small cluster is running: ${nodes.join(', ')}. Everything is kept in ${directory}`);
  printCommands('In a second terminal:', [
    `export KUBECONFIG=${kubeconfig} PATH=${join(ROOT, 'bin')}:$PATH`,
  ]);
}

function printCommands(what: string, commands: readonly string[]): void {
  if (commands.length === 0) return;
  printLine(what);
  for (const command of commands) printLine(`  ${command}`);
}

/** An image lacks docs/ and its examples. A test runs these commands as they are printed. */
const volumeCommands = (): string[] =>
  existsSync(EXAMPLES) ? [`kubectl apply -f ${EXAMPLES}/volume.yaml`] : [];

const SERVER_COMMANDS = [
  'longshore backup create first --include-namespaces app --snapshot-move-data --wait',
  'longshore browse first app/data',
  'longshore restore create again --from-backup first --namespace-mappings app:app-copy --wait',
];

/** Prints how to move the volume without a server, by creating the objects by hand. */
function tellByHand(directory: string): void {
  const get = `kubectl -n ${DEV_NAMESPACE}`;
  if (existsSync(EXAMPLES)) {
    const done = `--for=jsonpath='{.status.phase}'=Completed --timeout=2m`;
    const id = `$(${get} get dataupload example -o jsonpath='{.status.snapshotID}')`;
    printCommands('The same volume by hand, with the objects that a server would make:', [
      `kubectl apply -f ${EXAMPLES}/backup.yaml && ${get} wait dataupload/example ${done}`,
      `sed "s/SNAPSHOT_ID/${id}/" ${EXAMPLES}/restore.yaml | kubectl apply -f - && ${get} wait datadownload/example ${done}`,
    ]);
  }
  printCommands('What each volume holds, and what each operation waits for:', [
    `cat ${join(directory, 'storage/volumes')}/*/sample.txt`,
    'longshore node-agent status --all',
  ]);
}

/** Also resolves for a signal that aborted during the start, which fires no event later. */
function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((end) => {
    signal.addEventListener('abort', () => end(), { once: true });
  });
}

function findRoot(directory: string): string {
  for (let at = directory; ; at = dirname(at)) {
    if (at === dirname(at) || existsSync(join(at, 'bin/longshore'))) return at;
  }
}
