import type { Command } from 'commander';

/** Velero's plugin folder has this verb as a single file, `velero-plugin-longshore`. */
export function addPluginVerb(program: Command): void {
  program
    .command('plugin', { hidden: true })
    .description('run by the Velero server: its item actions for volumes of CSI drivers')
    // The server passes its own flags, which depend on its version.
    .allowUnknownOption()
    .allowExcessArguments()
    .helpOption(false)
    .action(async (_, command: Command) => {
      const { runPlugin } = await import('./server.ts');
      await runPlugin(command.args, () => import('./plugin-actions.ts'), process.argv[1] ?? '');
    });
}
