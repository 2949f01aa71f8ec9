import type { Command } from 'commander';

/**
 * As Velero's server would start it; its plugin folder has `velero-plugin-longshore`, which is this
 * verb alone in one file.
 */
export function addPluginVerb(program: Command): void {
  program
    .command('plugin', { hidden: true })
    .description('run by the Velero server: its item actions for volumes of CSI drivers')
    // The server passes its own flags on, of whichever version it is.
    .allowUnknownOption()
    .allowExcessArguments()
    .helpOption(false)
    .action(async (_, command: Command) => {
      const { runPlugin } = await import('./plugin-server.ts');
      await runPlugin(command.args, () => import('./plugin-actions.ts'), process.argv[1] ?? '');
    });
}
