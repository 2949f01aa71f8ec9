import type { Logger } from '../../base/index.ts';
import { connectToCluster, REFUSED_MS } from '../../kube/index.ts';
import { type OpenActions, openActions } from '../../plugin/index.ts';
import { VERSION } from '../version.ts';

/** Loaded at the first call of an action. Most plugin processes only list their actions. */
export const open = (logger: Logger): OpenActions =>
  openActions({
    client: connectToCluster({
      userAgent: `velero-plugin-longshore/${VERSION}`,
      refusedMs: REFUSED_MS,
    }),
    logger,
  });
