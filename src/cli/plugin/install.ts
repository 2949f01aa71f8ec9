import * as fs from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { CodedError, messageOf } from '../../base/index.ts';

/** The folder beside the launcher (image/plugin.sh). */
const FOLDER = 'longshore';

/**
 * Run by the init container. Copies the plugin, a launcher and its folder, into the plugin folder
 * of Velero's server. The launcher comes last, so that Velero never starts an incomplete plugin.
 * Replaces the files of an earlier run. Throws `PLUGIN_NOT_INSTALLED`.
 */
export function installPlugin(launcher: string, target: string): void {
  const folder = join(dirname(launcher), FOLDER);
  const names = { folder: join(target, FOLDER), launcher: join(target, basename(launcher)) };
  // Velero ignores this folder, because it contains no executable file.
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
    // Copied under another name first. Velero must not start half a file.
    const half = join(names.folder, 'launcher.coming');
    fs.copyFileSync(launcher, half);
    fs.renameSync(half, names.launcher);
  } catch (cause) {
    const text = `the plugin could not be copied to ${target}: ${messageOf(cause)}: mount the plugins volume of Velero's Deployment there, writable and with 150 MiB free`;
    throw new CodedError('PLUGIN_NOT_INSTALLED', text, { cause });
  }
}
