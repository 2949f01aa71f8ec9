import { CodedError, isCode } from '../../base/index.ts';
import { BACKUPS, type KubeObject, waitFor } from '../../kube/index.ts';
import { CANCEL_ANNOTATION } from '../../server/index.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { interruptSignal } from '../context.ts';
import { printText } from '../output.ts';

export interface CancelFlags extends ClusterFlags {
  wait?: boolean;
}

const FINAL = ['Completed', 'PartiallyFailed', 'Failed', 'FailedValidation'];
const WAIT_MS = 600_000;

const phaseOf = (backup: KubeObject | undefined): string =>
  (backup as { status?: { phase?: string } } | undefined)?.status?.phase ?? '';

/** Asks the server to end a backup. Throws `NO_BACKUP`, and `BACKUP_OVER` for one that has ended. */
export async function cancelBackup(name: string, flags: CancelFlags): Promise<void> {
  const { client, namespace } = clusterOf(flags);
  const interrupt = interruptSignal();
  const ref = { namespace, name };
  try {
    const backup = await client.find(BACKUPS, ref, { signal: interrupt.signal });
    if (!backup) throw new CodedError('NO_BACKUP', `there is no Backup ${namespace}/${name}`);
    const phase = phaseOf(backup);
    if (FINAL.includes(phase)) {
      throw new CodedError('BACKUP_OVER', `backup ${name} has ended already: ${phase}`);
    }
    const annotations = { [CANCEL_ANNOTATION]: 'true' };
    await client.patch(BACKUPS, ref, { metadata: { annotations } }, { signal: interrupt.signal });
    if (flags.wait !== true) {
      printText(`backup ${name} is told to end; see "velero backup get ${name}"\n`);
      return;
    }
    const look = (now: KubeObject | undefined): string | undefined => {
      if (!now) return 'deleted';
      return FINAL.includes(phaseOf(now)) ? phaseOf(now) : undefined;
    };
    const options = { timeoutMs: WAIT_MS, signal: interrupt.signal };
    const end = await waitFor(client, BACKUPS, ref, look, options);
    printText(`backup ${name} has ended: ${end}\n`);
  } catch (error) {
    if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
    const text = `backup ${name} has not ended yet: does a server run that makes backups (longshore server)?`;
    throw new CodedError('WAIT_TIMEOUT', text, { cause: error });
  } finally {
    interrupt.dispose();
    client.close();
  }
}
