import type { Logger } from '../../../base/index.ts';
import { pluginAsker } from '../../../item-operations/index.ts';
import type { Restore } from '../../../kube/index.ts';
import {
  type HostedAction,
  isInPlaceOperation,
  type PluginHost,
  type RestoreItemAction,
} from '../../../plugin/index.ts';
import type { RestoreAction } from '../../../restore/index.ts';
import type { RestoreSession, RestoreSessions } from './contract.ts';

export class HostRestoreSessions implements RestoreSessions {
  readonly #host: () => Promise<PluginHost>;

  /** `host` opens once. Each session waits for it. */
  constructor(host: () => Promise<PluginHost>) {
    this.#host = host;
  }

  async open(restore: Restore, logger: Logger): Promise<RestoreSession> {
    const manager = (await this.#host()).manager(logger);
    return {
      loadActions: (signal) =>
        Promise.all(
          manager.restoreItemActions().map(async (hosted) =>
            asRestoreAction({
              name: hosted.name,
              appliesTo: await hosted.appliesTo({ signal }),
              action: hosted.action,
            }),
          ),
        ),
      asker: pluginAsker(manager, restore),
      snapshotter: (provider, config) => manager.volumeSnapshotter(provider, config),
      [Symbol.asyncDispose]: () => manager.close(),
    };
  }
}

/** Adapts an action of Velero's protocol to the engine. */
export function asRestoreAction({
  name,
  appliesTo,
  action,
}: {
  readonly name: string;
  readonly appliesTo: RestoreAction['appliesTo'];
  readonly action: Pick<HostedAction<Required<RestoreItemAction>>['action'], RestoreCalls>;
}): RestoreAction {
  return {
    name,
    appliesTo,
    execute: async ({ restore: about, ...input }, context) => {
      const given = { ...input, restore: about };
      const { skipRestore, ...output } = await action.execute(given, context);
      const isInPlace = isInPlaceOperation(output.operationId ?? '');
      return {
        ...output,
        ...(skipRestore === true && { isSkipped: true }),
        ...(isInPlace && { isInPlace }),
      };
    },
    areAdditionalItemsReady: (items, about, context) =>
      action.areAdditionalItemsReady(items, about, context),
  };
}
type RestoreCalls = 'execute' | 'areAdditionalItemsReady';
