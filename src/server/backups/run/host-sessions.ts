import type { Logger } from '../../../base/index.ts';
import { type ActionClient, type Backup, openObjectActions } from '../../../backup/index.ts';
import { pluginAsker } from '../../../item-operations/index.ts';
import type { Backup as PluginBackup, PluginHost } from '../../../plugin/index.ts';
import type { ActionSession, ActionSessions } from '../contract.ts';

/** What a Backup is for actions: all of it. */
const asPlugins = (backup: Backup): PluginBackup => backup as unknown as PluginBackup;

/** The actions of the plugins of a host, with those for plain objects before them. */
export class HostSessions implements ActionSessions {
  readonly #client: ActionClient;
  readonly #host: () => Promise<PluginHost>;

  /** `host`: opened once, and waited for by each session. */
  constructor(client: ActionClient, host: () => Promise<PluginHost>) {
    this.#client = client;
    this.#host = host;
  }

  async open(backup: Backup, logger: Logger, signal: AbortSignal): Promise<ActionSession> {
    const manager = (await this.#host()).manager(logger);
    try {
      const own = openObjectActions(this.#client);
      const actions = await Promise.all(
        manager.backupItemActions().map(async (hosted) => ({
          name: hosted.name,
          appliesTo: await hosted.appliesTo({ signal }),
          execute: hosted.action.execute.bind(hosted.action) as never,
        })),
      );
      const blockActions = await Promise.all(
        manager.itemBlockActions().map(async (hosted) => ({
          name: hosted.name,
          appliesTo: await hosted.appliesTo({ signal }),
          relatedItems: hosted.action.relatedItems.bind(hosted.action) as never,
        })),
      );
      return {
        actions: [...own.actions, ...actions],
        blockActions: [...own.blockActions, ...blockActions],
        asker: pluginAsker(manager, asPlugins(backup)),
        snapshotter: (provider, config) => manager.volumeSnapshotter(provider, config),
        [Symbol.asyncDispose]: () => manager.close(),
      };
    } catch (error) {
      await manager.close();
      throw error;
    }
  }
}
