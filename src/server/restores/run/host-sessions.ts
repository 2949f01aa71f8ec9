import type { Logger } from '../../../base/index.ts';
import { pluginAsker } from '../../../item-operations/index.ts';
import {
  isInPlaceOperation,
  type PluginHost,
  type Restore as PluginRestore,
} from '../../../plugin/index.ts';
import type { Restore, RestoreAction } from '../../../restore/index.ts';
import type { RestoreSession, RestoreSessions } from './contract.ts';

/** What a Restore is for actions: all of it. */
const asPlugins = (restore: Restore): PluginRestore => restore;

/** The actions of the plugins of a host. */
export class HostRestoreSessions implements RestoreSessions {
  readonly #host: () => Promise<PluginHost>;

  /** `host`: opened once, and waited for by each session. */
  constructor(host: () => Promise<PluginHost>) {
    this.#host = host;
  }

  async open(restore: Restore, logger: Logger): Promise<RestoreSession> {
    const manager = (await this.#host()).manager(logger);
    return {
      loadActions: (signal) =>
        Promise.all(
          manager.restoreItemActions().map(async (hosted): Promise<RestoreAction> => ({
            name: hosted.name,
            appliesTo: await hosted.appliesTo({ signal }),
            execute: async ({ restore: about, ...input }, context) => {
              const given = { ...input, restore: asPlugins(about) };
              const { skipRestore, ...output } = await hosted.action.execute(given, context);
              const isInPlace = isInPlaceOperation(output.operationId ?? '');
              return {
                ...output,
                ...(skipRestore === true && { isSkipped: true }),
                ...(isInPlace && { isInPlace }),
              };
            },
            areAdditionalItemsReady: (items, about, context) =>
              hosted.action.areAdditionalItemsReady(items, asPlugins(about), context),
          })),
        ),
      asker: pluginAsker(manager, asPlugins(restore)),
      snapshotter: (provider, config) => manager.volumeSnapshotter(provider, config),
      [Symbol.asyncDispose]: () => manager.close(),
    };
  }
}
