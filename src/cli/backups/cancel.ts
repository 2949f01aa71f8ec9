import { CodedError, isCode } from '../../base/index.ts';
import { BACKUPS, type KubeObject, waitFor } from '../../kube/index.ts';
import { CANCEL_ANNOTATION } from '../../server/index.ts';
import type { ClusterFlags } from '../cluster.ts';
import { printText } from '../output.ts';
import { BACKUP, findNamed, isOver, phaseOf } from './noun.ts';
import { withSession } from './session.ts';

export interface CancelFlags extends ClusterFlags {
  wait?: boolean;
}

const WAIT_MS = 600_000;

/** Asks the server to end a backup. Throws `NO_BACKUP`, and `BACKUP_OVER` for one that has ended. */
export async function cancelBackup(name: string, flags: CancelFlags): Promise<void> {
  await withSession(flags, async (session) => {
    const { client, namespace, signal } = session;
    const ref = { namespace, name };
    const backup = await findNamed(BACKUP, name, session);
    if (isOver(backup)) {
      throw new CodedError('BACKUP_OVER', `backup ${name} has ended already: ${phaseOf(backup)}`);
    }
    const annotations = { [CANCEL_ANNOTATION]: 'true' };
    await client.patch(BACKUPS, ref, { metadata: { annotations } }, { signal });
    if (flags.wait !== true) {
      printText(`backup ${name} is told to end; see "longshore backup get ${name}"\n`);
      return;
    }
    const look = (now: KubeObject | undefined): string | undefined => {
      if (now?.metadata.uid !== backup.metadata.uid) return 'deleted';
      return isOver(now) ? phaseOf(now) : undefined;
    };
    try {
      const end = await waitFor(client, BACKUPS, ref, look, { timeoutMs: WAIT_MS, signal });
      printText(`backup ${name} has ended: ${end}\n`);
    } catch (error) {
      if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
      const text = `backup ${name} has not ended yet: does a server run that makes backups (longshore server)?`;
      throw new CodedError('WAIT_TIMEOUT', text, { cause: error });
    }
  });
}
