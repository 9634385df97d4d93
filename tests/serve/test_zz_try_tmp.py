import asyncio, subprocess
from tests.net.aio import run
from welldone.engines.settings import ModelSettings
from welldone.serve.server import Server
from welldone.serve.settings import Config, ServeSettings
def test_x(default_model, tmp_path):
    async def work():
        server = Server(Config(server=ServeSettings(port=0), models=(ModelSettings(name="m", file=default_model),)), keys=(), folder=tmp_path)
        await server.start()
        try:
            p = await asyncio.create_subprocess_exec("/tmp/serve-msg/v/bin/python","/tmp/serve-msg/sdk.py",f"http://127.0.0.1:{server.port}")
            await p.wait()
        finally: await server.stop()
    run(work())
