import type { Registry } from 'prom-client';
import type { Logger } from '../base/index.ts';
import type { KubeClient, ReadsAhead } from '../kube/index.ts';
import type { OperationMetrics, SharedBackups } from '../server/index.ts';
import type { ServerPlugins } from './server-plugins.ts';

/** What all controllers have in common. */
export interface Common {
  readonly client: KubeClient;
  /** Of this client: what backups will soon ask for. */
  readonly reads: ReadsAhead;
  readonly logger: Logger;
  readonly namespace: string;
  readonly host: string;
  readonly registry: Registry;
  /** For credentials. */
  readonly directory: string;
  readonly plugins: ServerPlugins | undefined;
  /** One watch of Backups for all that need it. */
  readonly backups: SharedBackups;
  /** Of operations of backups and restores, for both controllers. */
  readonly operationMetrics?: OperationMetrics;
}
