import { createLimiter } from '../base/index.ts';
import { environment } from '../config/index.ts';
import {
  DeletionController,
  type DeletionControllerOptions,
  type ForgetSnapshots,
} from '../server/index.ts';
import { forgetSnapshots } from '../snapshot/index.ts';
import { openContext } from './context.ts';
import type { Common } from './server-common.ts';

/** Of one open repository; the server has other work beside it. Our choice. */
const MEMORY = '256MiB';
/** Repositories open at once, of all locations. Our choice. */
const OPEN_AT_ONCE = 2;

type Parts = Pick<
  DeletionControllerOptions,
  | 'buckets'
  | 'sessions'
  | 'discovery'
  | 'snapshotLocations'
  | 'directory'
  | 'isMadeHere'
  | 'metrics'
>;

/** The controller of deletions on top of what backups are made with. */
export function deletionController(common: Common, parts: Parts): DeletionController {
  const { client, logger, namespace, host, backups } = common;
  const places = createLimiter(OPEN_AT_ONCE);
  const forget: ForgetSnapshots = ({ location, password }, ids, { signal, mayForget }) =>
    places.run(async () => {
      signal.throwIfAborted();
      // Velero's name in all its repositories. Nothing is kept on disk: each is opened once for a backup.
      const options = { repo: location, client: 'default@default', memoryLimit: MEMORY };
      await using opened = await openContext(options, { password, logger, cache: false });
      return await forgetSnapshots(opened.repository, ids, { signal, mayForget });
    });
  return new DeletionController({
    ...{ client, logger, namespace, host, writers: backups.writers, ...parts },
    forget,
    defaultCredentials: (kind) => environment.credentialsFile(kind),
  });
}
