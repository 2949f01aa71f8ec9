import type { Logger } from '../base/index.ts';
import { connectToCluster, REFUSED_MS } from '../kube/index.ts';
import { type OpenActions, openActions } from '../plugin/index.ts';
import { VERSION } from './version.ts';

/**
 * What a plugin process loads when the first of its actions is called; most processes are only
 * asked for their list.
 */
export const open = (logger: Logger): OpenActions =>
  openActions({
    client: connectToCluster({
      userAgent: `velero-plugin-longshore/${VERSION}`,
      refusedMs: REFUSED_MS,
    }),
    logger,
  });
