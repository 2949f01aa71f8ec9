import * as fs from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { CodedError, messageOf } from '../base/index.ts';

/** What lies beside the launcher (image/plugin.sh). */
const FOLDER = 'longshore';

/**
 * What the init container does: copies the plugin, a launcher with its folder beside it, into the
 * folder that it shares with Velero's server. The launcher comes last, so that nobody starts a part
 * of it; what an earlier run has left there is replaced. Throws `PLUGIN_NOT_INSTALLED`.
 */
export function installPlugin(launcher: string, target: string): void {
  const folder = join(dirname(launcher), FOLDER);
  const names = { folder: join(target, FOLDER), launcher: join(target, basename(launcher)) };
  // Nothing in it may be executed: Velero leaves it alone.
  const coming = join(target, `${FOLDER}.coming`);
  try {
    fs.rmSync(coming, { recursive: true, force: true });
    fs.mkdirSync(coming, { recursive: true });
    for (const name of fs.readdirSync(folder)) {
      fs.copyFileSync(join(folder, name), join(coming, name));
    }
    fs.rmSync(names.launcher, { force: true });
    fs.rmSync(names.folder, { recursive: true, force: true });
    fs.renameSync(coming, names.folder);
    // By a name that nobody starts it by, until all of it is there: who reads half of it finds no
    // program.
    const half = join(names.folder, 'launcher.coming');
    fs.copyFileSync(launcher, half);
    fs.renameSync(half, names.launcher);
  } catch (cause) {
    const text = `the plugin could not be copied to ${target}: ${messageOf(cause)}: mount the plugins volume of Velero's Deployment there, writable and with 150 MiB free`;
    throw new CodedError('PLUGIN_NOT_INSTALLED', text, { cause });
  }
}
