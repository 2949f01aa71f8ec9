import type { Registry } from 'prom-client';
import type { Logger } from '../../base/index.ts';
import type { KubeClient, ReadsAhead } from '../../kube/index.ts';
import type { OperationMetrics, SharedBackups } from '../../server/index.ts';
import type { ServerPlugins } from './plugins.ts';

/** Dependencies of all controllers. */
export interface Common {
  readonly client: KubeClient;
  /** Prefetched reads of this client, for backups. */
  readonly reads: ReadsAhead;
  readonly logger: Logger;
  readonly namespace: string;
  readonly host: string;
  readonly registry: Registry;
  /** For credentials files. */
  readonly directory: string;
  readonly plugins: ServerPlugins | undefined;
  /** All controllers share this watch of Backups. */
  readonly backups: SharedBackups;
  /** For operations of backups and restores, shared by both controllers. */
  readonly operationMetrics?: OperationMetrics;
}
