# Serves a pack by ONNX Runtime, without torch:
#
#   python -m pip wheel --no-deps -w dist .
#   docker build -t kgmlm .
#   docker run --rm -p 8000:8000 -v $PWD/models:/models:ro -e KGMLM_TOKEN=... kgmlm /models/mine.kgmlm
#
# The pack is one that `kgmlm pack` wrote with the structure for ONNX Runtime in it, which it does by default.
FROM python:3.11-slim
COPY docker/requirements.txt constraints.txt dist/*.whl /tmp/install/
RUN pip install --no-cache-dir --no-compile -r /tmp/install/requirements.txt -c /tmp/install/constraints.txt \
 && pip install --no-cache-dir --no-compile --no-deps /tmp/install/*.whl \
 && find /usr/local/lib/python3.11/site-packages -type d -name tests -prune -exec rm -r {} + \
 && rm -r /tmp/install \
 && useradd --create-home kgmlm
USER kgmlm
EXPOSE 8000
ENTRYPOINT ["kgmlm", "serve", "--host", "0.0.0.0", "--runtime", "onnx"]
