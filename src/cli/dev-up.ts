import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { NAMESPACES } from '../kube/index.ts';
import { createServerLogger } from '../observability/index.ts';
import { interruptSignal } from './context.ts';
import { DEV_NAMESPACE, DevEnvironment } from './dev-environment.ts';
import { printLine } from './terminal.ts';
import type { UpFlags } from './dev.ts';
import { UsageError } from './usage-error.ts';

const NODES_MAX = 16;
const PORT_MAX = 65_535;

/** `longshore dev up`: runs until Ctrl-C. */
export async function runCluster(flags: UpFlags): Promise<void> {
  const count = Number(flags.nodes);
  if (!Number.isInteger(count) || count < 1 || count > NODES_MAX) {
    throw new UsageError(`--nodes "${flags.nodes}" is not a number from 1 to ${NODES_MAX}`);
  }
  const port = flags.port === undefined ? undefined : Number(flags.port);
  if (port !== undefined && !(Number.isInteger(port) && port >= 0 && port <= PORT_MAX)) {
    throw new UsageError(`--port "${flags.port ?? ''}" is not a port`);
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
      // The launcher that started this process starts the movers too.
      command: [join(new URL('../..', import.meta.url).pathname, 'bin/longshore')],
      environment: { HOME: join(directory, 'home'), PATH: '/usr/bin:/bin' },
      logger: createServerLogger(flags.logLevel, 'text'),
    });
    for (const node of nodes) environment.startAgent(node);
    for (const name of ['default', 'app']) {
      if (await environment.client.find(NAMESPACES, { name })) continue;
      await environment.client.create(NAMESPACES, { metadata: { name } });
    }
    printLine(
      `nodes ${nodes.join(', ')}; Velero's namespace is ${DEV_NAMESPACE}; all of it lies in ${directory}`,
    );
    printLine(`  export KUBECONFIG=${environment.kubeconfig}`);
    printLine(`  kubectl -n ${DEV_NAMESPACE} get datauploads -w`);
    printLine('Ctrl-C ends it.');
    await aborted(interrupt.signal);
  } finally {
    interrupt.dispose();
  }
}

/** Also when it was aborted before: a signal that came during the start is not told again. */
function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((end) => {
    signal.addEventListener('abort', () => end(), { once: true });
  });
}
