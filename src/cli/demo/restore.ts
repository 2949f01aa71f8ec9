import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { CONFIG_MAPS, NAMESPACES, RESTORES, waitFor } from '../../kube/index.ts';
import { backUp, makeApplication } from './backup.ts';
import { followRun, type RunStatus, WAIT_MS, whenRunning } from './progress.ts';
import { withDemoServer } from './server.ts';
import { DEV_NAMESPACE, type DevEnvironment } from './dev-environment.ts';
import { printLine } from '../output/terminal.ts';

const LOOK_MS = 50;

interface RestoreStatus extends RunStatus {
  readonly progress?: { readonly totalItems?: number; readonly itemsRestored?: number };
  readonly restoreItemOperationsAttempted?: number;
  readonly restoreItemOperationsCompleted?: number;
}

/** `npm run demo -- restore`: backs up a namespace, deletes it with its volume, and restores it. */
export async function demoRestore(
  environment: DevEnvironment,
  directory: string,
  nodes: readonly string[],
): Promise<void> {
  const { client } = environment;
  printLine(`2. node-agents start (${nodes.join(', ')}), and the server that makes backups`);
  for (const node of nodes) environment.startAgent(node);
  await withDemoServer(environment, directory, async () => {
    await makeApplication(environment);
    const lost = await environment.volumeOf('app', 'data');
    const before = digestOf(lost);
    await backUp(environment);

    printLine('5. somebody deletes the namespace, and the volume is gone with it');
    await client.delete(NAMESPACES, { name: 'app' });
    await waitFor(client, NAMESPACES, { name: 'app' }, (now) => (now ? undefined : true), {
      timeoutMs: WAIT_MS,
    });
    while (existsSync(lost)) await sleep(LOOK_MS);

    printLine('6. a Restore, as `velero restore create oops --from-backup nightly` makes it');
    await client.create(RESTORES, {
      metadata: { namespace: DEV_NAMESPACE, name: 'oops' },
      spec: { backupName: 'nightly' },
    });
    await followRun(client, RESTORES, 'oops', (status: RestoreStatus) => ({
      items: [status.progress?.itemsRestored, status.progress?.totalItems],
      operations: [status.restoreItemOperationsCompleted, status.restoreItemOperationsAttempted],
    }));

    printLine('7. what is there again:');
    const pod = await whenRunning(client, { metadata: { namespace: 'app', name: 'web-0' } });
    printLine(`   pod app/web-0: ${pod.status?.phase ?? ''} on ${pod.spec.nodeName ?? ''}`);
    const settings = await client.get(CONFIG_MAPS, { namespace: 'app', name: 'settings' });
    printLine(`   ConfigMap app/settings: ${JSON.stringify(settings.data)}`);
    const after = digestOf(await environment.volumeOf('app', 'data'));
    if (after !== before) throw new Error('the restored volume differs from what was backed up');
    printLine('   volume app/data: every byte, mode and time is the same');
  });
}

/** A digest of all names, bytes, owners, modes and modification times. */
function digestOf(directory: string): string {
  const script = 'tar --sort=name --numeric-owner -cf - -C "$0" . | sha256sum';
  return execFileSync('sh', ['-c', script, directory], { encoding: 'utf8' });
}
